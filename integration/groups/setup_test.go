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

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

const (
	// soon is much longer than a message needs that nothing stops. A message that the broker tries to forward again comes
	// after three minutes: it is missing then.
	soon    = 60 * time.Second
	batch   = 300 // messages of healthy work queues, and as many of the other one
	tier    = "2s"
	healthy = 5 // work queues
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A group has work queues with the same tiers. Its names are those of no other test.
type group struct {
	t      testing.TB
	name   string
	common config.Config // of all apps
}

func newGroup(t testing.TB) *group {
	t.Helper()
	c := testapp.Config(t, testapp.Schedule(2*time.Second))
	c.Policy.TierGroup, c.Policy.ExtraTiers = c.Prefix+"_group", c.Policy.Schedule
	return &group{t: t, name: c.Prefix, common: c}
}

func (g *group) queue(base string) string  { return base + "_" + g.name }
func (g *group) inbox(queue string) string { return queue + "." + g.name + ".inbox" }
func (g *group) orphans() string           { return g.name + ".orphans" }
func (g *group) tierGroup() string         { return g.common.Policy.TierGroup }

// config declares work queues with these arguments.
func (g *group) config(arguments amqp091.Table) config.Config {
	c := g.common
	c.AMQP.Queue.Arguments = arguments
	return c
}

// consume starts an app whose handlers call handle. It runs until it is stopped, or the test ends.
func (g *group) consume(c config.Config, handle message.NoPublishHandlerFunc, queues ...string) *testapp.App {
	g.t.Helper()
	a := testapp.Connect(g.t, c)
	for _, queue := range queues {
		a.AddConsumerHandler(a.Router, queue, queue, handle)
	}
	a.Run()
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
	g.consume(g.config(nil), processed.Handle, queues...)
	return processed
}

func (g *group) healthyQueue(i int) string { return g.queue(fmt.Sprintf("healthy%d", i%healthy)) }

// gone declares a work queue of the group and deletes it. Its tiers, and its inbox, stay.
func (g *group) gone(queue string, arguments amqp091.Table) {
	g.t.Helper()
	g.declare(queue, arguments)
	testapp.Delete(g.t, queue)
}

// declare declares a work queue of the group that no app consumes.
func (g *group) declare(queue string, arguments amqp091.Table) {
	g.t.Helper()
	builder, err := config.NewBuilder(g.config(arguments))
	require.NoError(g.t, err)
	broker.Declare(g.t, builder.Topology(queue).Declare)
}

// wait lets messages of healthy work queues and of another one wait on the tier, in turns. The identities of the
// healthy ones come first.
func (g *group) wait(other string) {
	g.t.Helper()
	channel := broker.Channel(g.t)
	require.NoError(g.t, channel.Confirm(false))
	var confirms []*amqp091.DeferredConfirmation
	send := func(queue string, order amqp091.Publishing) {
		order.DeliveryMode = amqp091.Persistent
		confirm, err := channel.PublishWithDeferredConfirm(
			g.tierGroup()+"."+g.name, tier+"."+queue, true, false, order)
		require.NoError(g.t, err)
		confirms = append(confirms, confirm)
	}
	orders := testapp.Orders(2 * batch)
	for i := range batch {
		send(g.healthyQueue(i), orders[i])
		send(other, orders[batch+i])
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

// messages is how many messages a queue has, including those that the broker forwards from it. Zero where it does not
// exist.
func (g *group) messages(queue string) int {
	info, err := broker.Queue(broker.Management(g.t), queue)
	if err != nil {
		return 0
	}
	return info.Messages
}
