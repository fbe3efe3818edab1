// Package groups_test has work queues that share their tiers, and some of them do not take their messages.
package groups_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// soon is much longer than a message needs that nothing stops. A message that the broker tries to forward again comes after three
	// minutes: it is missing then.
	soon    = 60 * time.Second
	batch   = 500 // messages of healthy work queues, and as many of the other one
	tier    = "2s"
	healthy = 5 // work queues
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A group has work queues with the same tiers. Its names are those of no other test.
type group struct {
	t    testing.TB
	name string
	log  *testapp.Log
}

func newGroup(t testing.TB) *group {
	t.Helper()
	g := &group{t: t, name: broker.Name(t, "t"), log: &testapp.Log{}}
	broker.Clean(t, g.name)
	return g
}

func (g *group) queue(base string) string  { return base + "_" + g.name }
func (g *group) inbox(queue string) string { return queue + "." + g.name + ".inbox" }
func (g *group) orphans() string           { return g.name + ".orphans" }
func (g *group) tierGroup() string         { return g.name + "_group" }

// config declares work queues with these arguments.
func (g *group) config(arguments amqp091.Table) config.Config {
	app := amqp.NewDurableQueueConfig(broker.URL(g.t))
	app.Queue.Arguments = arguments
	return config.Config{
		AMQP: app, Settings: rabbitmq.Settings{Prefix: g.name}, Policy: retry.Policy{TierGroup: g.tierGroup(), Schedule: backoff.Constant(2*time.Second, 1), ExtraTiers: []time.Duration{}},
	}
}

// An app consumes work queues of the group.
type app struct {
	retry.Connection
	router *message.Router
	stop   func()
}

// consume starts an app whose handlers call handle. It runs until stop is called, or the test ends.
func (g *group) consume(b config.Config, handle message.NoPublishHandlerFunc, queues ...string) *app {
	g.t.Helper()
	rabbit, err := config.Connect(b, g.log)
	require.NoError(g.t, err)
	a := &app{Connection: rabbit, router: message.NewDefaultRouter(g.log)}
	for _, queue := range queues {
		a.AddConsumerHandler(a.router, queue, queue, handle)
	}
	stop := testapp.Start(g.t, a.router)
	ended := false
	a.stop = func() {
		if !ended {
			ended = true
			stop()
			require.NoError(g.t, rabbit.Close())
		}
	}
	g.t.Cleanup(a.stop)
	return a
}

// consumeHealthy starts an app that consumes the healthy work queues, and counts their messages.
func (g *group) consumeHealthy() *testapp.Ledger {
	g.t.Helper()
	processed := testapp.NewLedger()
	var queues []string
	for i := range healthy {
		queues = append(queues, g.healthyQueue(i))
	}
	g.consume(g.config(nil), func(msg *message.Message) error {
		processed.Add(msg.UUID)
		return nil
	}, queues...)
	return processed
}

func (g *group) healthyQueue(i int) string { return g.queue(fmt.Sprintf("healthy%d", i%healthy)) }

// declare declares a work queue of the group that no app consumes.
func (g *group) declare(queue string, arguments amqp091.Table) {
	g.t.Helper()
	builder, err := config.NewBuilder(g.config(arguments))
	require.NoError(g.t, err)
	require.NoError(g.t, builder.Topology(queue).Declare(broker.Channel(g.t)))
}

func (g *group) delete(queue string) {
	g.t.Helper()
	_, err := broker.Channel(g.t).QueueDelete(queue, false, false, false)
	require.NoError(g.t, err)
}

// wait lets messages of healthy work queues and of another one wait on the tier, in turns. The identities of the healthy ones come first.
func (g *group) wait(other string) {
	g.t.Helper()
	channel := broker.Channel(g.t)
	require.NoError(g.t, channel.Confirm(false))
	var confirms []*amqp091.DeferredConfirmation
	orders := testapp.Orders(2 * batch)
	for i := range batch {
		for _, copied := range []struct {
			queue string
			order amqp091.Publishing
		}{{g.healthyQueue(i), orders[i]}, {other, orders[batch+i]}} {
			copied.order.DeliveryMode = amqp091.Persistent
			confirm, err := channel.PublishWithDeferredConfirm(g.tierGroup()+"."+g.name, tier+"."+copied.queue, true, false, copied.order)
			require.NoError(g.t, err)
			confirms = append(confirms, confirm)
		}
	}
	for _, confirm := range confirms {
		require.True(g.t, confirm.Wait())
	}
}

// healthyArrive waits until all messages of healthy work queues are processed, each once.
func (g *group) healthyArrive(processed *testapp.Ledger) {
	g.t.Helper()
	processed.Wait(g.t, batch, soon)
	assert.Empty(g.t, processed.Twice())
	for i := range batch {
		assert.Contains(g.t, processed.Counts(), testapp.ID(i))
	}
}

// messages is how many messages a queue has, including those that the broker forwards from it. Zero where it does not exist.
func (g *group) messages(queue string) int {
	info, err := broker.Queue(broker.Management(g.t), queue)
	if err != nil {
		return 0
	}
	return info.Messages
}

// refused checks that a work queue cannot be consumed, and why.
func (g *group) refused(b config.Config, queue, reason string) {
	g.t.Helper()
	rabbit, err := config.Connect(b, g.log)
	require.NoError(g.t, err)
	defer func() { require.NoError(g.t, rabbit.Close()) }()
	s, err := rabbit.Subscriber("refused")
	require.NoError(g.t, err)
	_, err = s.Subscribe(g.t.Context(), queue)
	require.ErrorContains(g.t, err, reason)
	require.ErrorContains(g.t, err, "without an inbox")
}
