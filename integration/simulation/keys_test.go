package simulation

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// Processes tell one another what they know of limits. One that starts does it at once. After a restart of the broker all
// of them do, and the queue of the commands would drop what an operator says meanwhile: each one waits for a random time.
func TestProcessesTellOneAnotherAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var asked []time.Time // the model has no direct replies, and refuses to consume them
		var consumed time.Time
		broker := model.New(model.Config{Fault: func(e model.Event) model.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e.After:
			case e.Name == "watermill-retry publisher" && e.Method == "basic.consume":
				asked = append(asked, time.Now())
			case e.Name == "watermill-retry subscriber" && e.Method == "basic.consume":
				consumed = time.Now()
			}
			return model.None
		}})
		defer broker.Stop()
		earlier := connected(t, broker, watermill.NopLogger{}) // of the same process
		require.NoError(t, earlier.Close())
		own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
		own.Connection.AmqpConfig = &amqp091.Config{Dial: broker.Dial}
		connection, err := config.Connect(config.Config{AMQP: own, Policy: retry.Policy{
			Schedule: backoff.Schedule{time.Second},
			Breaker:  &retry.Breaker{Key: func(*message.Message) string { return "7" }},
		}}, nil)
		require.NoError(t, err)
		defer connection.Close()
		stop := handling(t, func(router *message.Router) {
			connection.AddConsumerHandler(router, "deliver", "webhooks", func(*message.Message) error { return nil })
		})
		time.Sleep(time.Minute)
		mu.Lock()
		assert.Len(t, asked, 2, "before it consumes, and when commands come to it")
		assert.Equal(t, consumed, asked[1])
		mu.Unlock()
		waits := map[time.Duration]bool{}
		for range 20 {
			for number, name := range broker.Connections() {
				if name == "watermill-retry subscriber" {
					broker.Disturb(number, model.Cut)
				}
			}
			time.Sleep(time.Minute)
			mu.Lock()
			wait := asked[len(asked)-1].Sub(consumed)
			mu.Unlock()
			waits[wait] = true
			assert.GreaterOrEqual(t, wait, time.Duration(0))
			assert.Less(t, wait, 5*time.Second)
		}
		assert.Greater(t, len(waits), 15)
		stop()
	})
}
