package simulation

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// Work queues of a group that subscribe at the same time share what is declared for the group, and not the fault of one
// of them: the dead-letter queue of the first one exists with other arguments.
func TestAFaultOfAWorkQueueIsNoneOfItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		broker.DeclareQueue("orders0.dead", amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(5)})
		own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
		own.Connection.AmqpConfig = &amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
		rabbit, err := config.Connect(config.Config{
			AMQP: own, Policy: retry.Policy{Schedule: planOf(1).schedule, TierGroup: "shop"},
		}, watermill.NopLogger{})
		require.NoError(t, err)
		defer rabbit.Close()
		for number := range broker.Connections() {
			broker.Slow(number, time.Second, time.Second)
		}
		var subscribing sync.WaitGroup
		for i := range 4 {
			s, err := rabbit.Subscriber(fmt.Sprint("handler", i))
			require.NoError(t, err)
			subscribing.Go(func() {
				_, err := s.Subscribe(t.Context(), fmt.Sprint("orders", i))
				if i == 0 {
					assert.ErrorContains(t, err, "orders0.dead")
				} else {
					assert.NoError(t, err)
				}
			})
			time.Sleep(time.Second) // the first one declares what they share
		}
		subscribing.Wait()
	})
}
