package simulation

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

func connected(t *testing.T, broker *model.Broker, verifyOnly bool, logger watermill.LoggerAdapter) retry.Connection {
	own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
	own.Connection.AmqpConfig = &amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
	connection, err := config.Connect(config.Config{
		AMQP: own, Policy: retry.Policy{Schedule: planOf(1).schedule}, Settings: rabbitmq.Settings{VerifyOnly: verifyOnly},
	}, logger)
	require.NoError(t, err)
	return connection
}

func consume(t *testing.T, rabbit retry.Connection, queue string) (end func() error) {
	s, err := rabbit.Subscriber(queue)
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), queue)
	require.NoError(t, err)
	return s.Close
}

// A queue that is not consumed is not bound: an operator can remove it while the app goes on. The bindings of one that is
// consumed come back with the next check, as often as they are gone. What came meanwhile is an orphan.
func TestBindingsComeBackWhileTheirQueueIsConsumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		rabbit := connected(t, broker, false, watermill.NopLogger{})
		defer rabbit.Close()
		require.NoError(t, consume(t, rabbit, "removed")())
		consume(t, rabbit, "kept")
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

// An app that declares its topology logs orphans, and one that only verifies it: once, until there are none.
func TestTheFirstOrphanIsLogged(t *testing.T) {
	for name, verifyOnly := range map[string]bool{"declares": false, "verifies": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := model.New(model.Config{})
				defer broker.Stop()
				if verifyOnly {
					declaring := connected(t, broker, false, watermill.NopLogger{})
					consume(t, declaring, "orders")
					require.NoError(t, declaring.Close())
				}
				log := &testapp.Log{}
				rabbit := connected(t, broker, verifyOnly, log)
				defer rabbit.Close()
				consume(t, rabbit, "orders")
				const line = "orphans are in the queue"
				for times := range 2 {
					assert.Equal(t, times, log.Count(line))
					broker.Publish("retry.return", "1s.nowhere", amqp091.Publishing{})
					time.Sleep(time.Minute)
					assert.Equal(t, times+1, log.Count(line), "it has looked several times")
					assert.Equal(t, 1, broker.PurgeQueue("retry.orphans"))
					time.Sleep(time.Minute)
				}
				assert.Contains(t, fmt.Sprint(log.Lines(line)), "`wmretry dead redrive retry.orphans`")
			})
		})
	}
}
