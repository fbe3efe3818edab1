package declare_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// inGroup makes the work queues of an app share their tiers.
func inGroup(c *config.Config) { c.Policy.TierGroup, c.Policy.ExtraTiers = "shop", c.Policy.Schedule }

// replaced deletes a work queue, and declares it with other arguments before its consumers do it again.
func replaced(b *model.Broker, queue string, arguments amqp091.Table) {
	b.DeleteQueue(queue, false)
	b.DeclareQueue(queue, arguments)
}

// TestTheWorkQueueIsReplacedWhileItIsConsumed, also by one of another type: in a group it gets an inbox when it needs one.
// No message comes twice.
func TestTheWorkQueueIsReplacedWhileItIsConsumed(t *testing.T) {
	for name, change := range map[string]func(*config.Config){"own tiers": func(*config.Config) {}, "a group": inGroup} {
		t.Run(name, func(t *testing.T) {
			testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
				a := testapp.Connect(t, c)
				processed, want := testapp.NewLedger(), map[string]int{}
				a.Handle("orders", 3, processed.HandleRetries)
				a.Run()
				for i, arguments := range []amqp091.Table{nil, {"x-queue-type": "classic"}, {"x-queue-type": "quorum",
					"x-delivery-limit": int32(50), "x-dead-letter-exchange": "amq.fanout"}} {
					if i > 0 {
						replaced(b, "orders", arguments)
						time.Sleep(time.Minute)
						assert.Equal(t, name == "a group", slices.Contains(b.Queues(), "orders.retry.inbox"))
					}
					for n := range 50 {
						id := fmt.Sprint(i, "-", n)
						a.Publish("orders", id)
						want[id] = 1
					}
					time.Sleep(10 * time.Second)
					assert.Equal(t, want, processed.Counts())
					assert.Empty(t, append(b.Messages("orders.dead"), b.Messages("retry.orphans")...))
				}
				assert.Equal(t, 1, a.Log.Warnings("no dead-letter exchange"))
				assert.Zero(t, a.Log.Count("reconnecting"))
				assert.NoError(t, a.Health().Ready())
			}, change)
		})
	}
}

// TestOneReturnBindingIsRemoved: messages come back through the other exchange, at once. None becomes an orphan.
func TestOneReturnBindingIsRemoved(t *testing.T) {
	for _, exchange := range []string{"retry.return", "retry.return.any"} {
		testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
			a := testapp.Connect(t, c)
			processed := testapp.NewLedger()
			a.Handle("orders", 3, processed.HandleRetries)
			a.Run()
			b.Unbind("orders", exchange)
			a.Publish("orders", testapp.IDs(50)...)
			time.Sleep(time.Second)
			assert.Equal(t, 50, processed.Len())
			assert.Empty(t, b.Messages("retry.orphans"))
		})
	}
}

// TestARetiredTierOfAGroup: what waits on it comes back once, to its own work queue, with an inbox and without.
func TestARetiredTierOfAGroup(t *testing.T) {
	for name, existing := range map[string]amqp091.Table{
		"without an inbox": {"x-queue-type": "quorum", "x-delivery-limit": int64(1000), "x-dead-letter-exchange": "amq.fanout"},
		"with an inbox":    {"x-queue-type": "classic"},
	} {
		t.Run(name, func(t *testing.T) {
			testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
				connection, err := amqp091.DialConfig("amqp://model", *c.AMQP.Connection.AmqpConfig)
				require.NoError(t, err)
				defer connection.Close()
				channel, err := connection.Channel()
				require.NoError(t, err)
				a, processed := testapp.Connect(t, c), testapp.NewLedger()
				queues := []string{"orders", "mails"}
				for _, queue := range queues {
					old := topology.New(topology.Config{Tiers: backoff.Constant(7*time.Second, 1).Tiers(), Prefix: "retry",
						TierGroup: "shop", WorkQueueMode: topology.Leave},
						topology.Queue{Name: queue, Durable: true, Arguments: existing})
					require.NoError(t, old.Declare(channel))
					require.Equal(t, name == "with an inbox", slices.ContainsFunc(old.Queues,
						func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".inbox") }))
					replaced(b, queue, existing) // the bindings of the old app go with it
					a.Handle(queue, 1, func(m *message.Message) error { processed.Add(queue + " of " + m.UUID); return nil })
				}
				a.Run()
				want := map[string]int{}
				for _, queue := range queues {
					require.Equal(t, 1, b.Publish("shop.retry", "7s."+queue, amqp091.Publishing{
						Headers: amqp091.Table{"_watermill_message_uuid": queue}}))
					want[queue+" of "+queue] = 1
				}
				time.Sleep(10 * time.Second)
				assert.Equal(t, want, processed.Counts(), "its own messages")
				assert.Empty(t, b.Messages("shop.retry.7s"))
			}, inGroup)
		})
	}
}
