package simulation

import (
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

// A queue that is not consumed is not bound: an operator can remove it while the app goes on. The bindings of one that is
// consumed come back with the next check, as often as they are gone. What came meanwhile is an orphan.
func TestBindingsComeBackWhileTheirQueueIsConsumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
		own.Connection.AmqpConfig = &amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
		rabbit, err := config.Connect(config.Config{AMQP: own, Policy: retry.Policy{Schedule: planOf(1).schedule}},
			watermill.NopLogger{})
		require.NoError(t, err)
		defer rabbit.Close()
		consume := func(queue string) (end func() error) {
			s, err := rabbit.Subscriber(queue)
			require.NoError(t, err)
			_, err = s.Subscribe(t.Context(), queue)
			require.NoError(t, err)
			return s.Close
		}
		require.NoError(t, consume("removed")())
		consume("kept")
		time.Sleep(time.Hour) // a check of the first queue that ran during its Close is over
		comesBack := func(queue string) bool {
			require.Equal(t, 1, broker.Publish("retry.return", "1s."+queue, amqp091.Publishing{}), "no message is lost")
			return broker.PurgeQueue("retry.orphans") == 0
		}
		for range 2 {
			for _, queue := range []string{"removed", "kept"} {
				broker.Unbind(queue, "retry.return")
				broker.Unbind(queue, "retry.return.any")
			}
			assert.False(t, comesBack("kept"))
			time.Sleep(time.Minute)
			assert.True(t, comesBack("kept"))
			assert.False(t, comesBack("removed"))
		}
	})
}
