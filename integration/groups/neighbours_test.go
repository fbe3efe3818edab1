package groups_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// The messages of a work queue that is gone become orphans, and stop none of the other work queues.
func TestADeletedWorkQueue(t *testing.T) {
	t.Parallel()
	for kind, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": {"x-queue-type": "classic"}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			deleted := g.queue("deleted")
			g.gone(deleted, arguments)
			processed := g.consumeHealthy()
			g.wait(deleted)
			g.healthyArrive(processed)
			broker.Eventually(t, soon, func() bool { return testapp.Depth(t, g.orphans()) == batch },
				"the messages of the deleted one are orphans")
			assert.Empty(t, processed.Twice())
			orphans := testapp.NewLedger()
			key := tier + "." + deleted
			if kind == "classic" {
				key = "inbox." + deleted // it has an inbox
			}
			for _, orphan := range testapp.Take(t, g.orphans(), batch) {
				orphans.Add(orphan.Headers["_watermill_message_uuid"].(string))
				assert.Equal(t, key, orphan.RoutingKey)
			}
			for i := range batch {
				assert.Contains(t, orphans.Counts(), testapp.ID(batch+i))
			}
		})
	}
}

// full are the arguments of a work queue that refuses messages. Its consumer takes no message.
func full(kind string) amqp091.Table {
	return amqp091.Table{"x-queue-type": kind, "x-max-length": int64(10), "x-overflow": "reject-publish"}
}

// The messages that a full work queue does not take wait in its inbox, and stop none of the other work queues.
func TestAFullWorkQueue(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			refusing := g.queue("refusing")
			g.declare(refusing, full(kind))
			processed := g.consumeHealthy()
			g.wait(refusing)
			g.healthyArrive(processed)
			broker.Eventually(t, soon, func() bool { return g.messages(g.inbox(refusing))+g.messages(refusing) == batch },
				"its messages wait")
			assert.Less(t, g.messages(refusing), batch/2, "it refuses messages")
			assert.Zero(t, testapp.Depth(t, g.orphans()))
			assert.Empty(t, processed.Twice())
		})
	}
}

// A full work queue whose consumer goes on gets each of its messages once. The broker offers refused messages again
// after three minutes: here after seconds.
func TestAloneAFullWorkQueueIsEmptied(t *testing.T) {
	broker.Alone(t)
	const setting = "dead_letter_worker_publisher_confirm_timeout"
	before := strings.TrimSpace(broker.Ctl(t, "-q", "eval", "application:get_env(rabbit, "+setting+", 180000)."))
	broker.Ctl(t, "eval", "application:set_env(rabbit, "+setting+", 3000).")
	t.Cleanup(func() { broker.Ctl(t, "eval", "application:set_env(rabbit, "+setting+", "+before+").") })
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // the cleanup of the setting waits
			g := newGroup(t)
			refusing := g.queue("refusing")
			g.declare(refusing, full(kind))
			processed := g.consumeHealthy()
			g.wait(refusing)
			g.healthyArrive(processed)
			broker.Eventually(t, soon, func() bool { return g.messages(g.inbox(refusing))+g.messages(refusing) == batch },
				"its messages wait")

			relieved := testapp.NewLedger()
			g.consume(g.config(full(kind)), relieved.Handle, refusing)
			relieved.Wait(t, batch, 5*time.Minute)
			broker.Eventually(t, soon, func() bool { return g.messages(g.inbox(refusing))+g.messages(refusing) == 0 },
				"nothing is left")
			assert.Empty(t, relieved.Twice())
			for i := range batch {
				assert.Contains(t, relieved.Counts(), testapp.ID(batch+i))
			}
			assert.Empty(t, processed.Twice())
		})
	}
}

// Without inboxes only work queues are accepted that always take messages.
func TestWithoutInboxes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arguments amqp091.Table
		refused   string
	}{
		"quorum":            {amqp091.Table{"x-queue-type": "quorum"}, ""},
		"protected":         {nil, ""},
		"classic":           {amqp091.Table{"x-queue-type": "classic"}, "it is a classic queue"},
		"with a limit":      {amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(1000)}, "it has a length limit"},
		"with another type": {full("classic"), "it is a classic queue"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			b := g.config(test.arguments)
			b.NoInbox = true
			if test.refused == "" {
				a := g.consume(b, func(*message.Message) error { return nil }, g.queue("orders"))
				assert.NoError(t, a.Health().Ready())
				assert.Zero(t, g.messages(g.inbox(g.queue("orders"))))
				return
			}
			g.refused(b, g.queue("orders"), test.refused)
		})
	}
}

// A work queue that refuses messages while it is full is warned of once. One with reject-publish and no limit is never
// full.
func TestAWarningOfAWorkQueueThatRefuses(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	const warning = "refuses messages while it is full"
	ignore := func(*message.Message) error { return nil }
	first := g.consume(g.config(nil), ignore, g.queue("protected"))
	assert.Zero(t, first.Log.Warnings(warning))
	first.Stop()
	queue := g.queue("full")
	b := g.config(full("quorum"))
	a := g.consume(b, ignore, queue)
	assert.Equal(t, 1, a.Log.Warnings(warning))
	s, err := a.Subscriber("another")
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), queue)
	require.NoError(t, err)
	assert.Equal(t, 1, a.Log.Warnings(warning))
	assert.Contains(t, a.Log.Lines(warning)[0], queue)
}

// What comes from the inbox of a work queue that is gone becomes an orphan. The redrive of docs/operations.md sends it
// back: it publishes the orphan with the routing key that it came with.
func TestOrphansOfAnInbox(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	queue := g.queue("orders")
	arguments := amqp091.Table{"x-queue-type": "classic"}
	g.gone(queue, arguments)
	testapp.Send(t, g.tierGroup()+"."+g.name, tier+"."+queue, testapp.Orders(batch)...)
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, g.orphans()) == batch }, "all are orphans")

	processed := testapp.NewLedger()
	g.consume(g.config(arguments), processed.Handle, queue)
	for _, orphan := range testapp.Take(t, g.orphans(), batch) {
		assert.Equal(t, "inbox."+queue, orphan.RoutingKey)
		testapp.Send(t, g.name+".return", orphan.RoutingKey, amqp091.Publishing{Headers: orphan.Headers, Body: orphan.Body})
	}
	processed.Wait(t, batch, soon)
	assert.Empty(t, processed.Twice())
	assert.Zero(t, testapp.Depth(t, g.orphans()))
}
