package groups_test

import (
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// The messages of a work queue that is gone become orphans, and stop none of the other work queues. The redrive of
// docs/operations.md sends an orphan back: it publishes it with the routing key that it came with.
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
			g.consume(g.config(arguments), orphans.Handle, deleted)
			for _, orphan := range testapp.Take(t, g.orphans(), batch) {
				assert.Equal(t, key, orphan.RoutingKey)
				testapp.Send(t, g.name+".return", key, amqp091.Publishing{Headers: orphan.Headers, Body: orphan.Body})
			}
			orphans.Wait(t, batch, soon)
			assert.Empty(t, orphans.Twice())
			for i := range batch {
				assert.Contains(t, orphans.Counts(), testapp.ID(batch+i))
			}
			assert.Zero(t, testapp.Depth(t, g.orphans()))
		})
	}
}

// full are the arguments of a work queue that refuses messages. Its consumer takes no message.
func full(kind string) amqp091.Table {
	return amqp091.Table{"x-queue-type": kind, "x-max-length": int64(10), "x-overflow": "reject-publish"}
}

// The messages that a full work queue does not take wait in its inbox, and neither stop nor delay those of the other work
// queues.
func TestAFullWorkQueue(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			refusing := g.queue("refusing")
			g.declare(refusing, full(kind))
			processed := g.consumeHealthy()
			control := newGroup(t) // whose other work queue takes all messages
			other := control.queue("other")
			control.declare(other, amqp091.Table{"x-queue-type": kind})
			beside := control.consumeHealthy()
			began := [2]time.Time{}
			for i, one := range []func(){func() { g.wait(refusing) }, func() { control.wait(other) }} {
				began[i] = time.Now()
				one()
			}
			g.healthyArrive(processed)
			control.healthyArrive(beside)
			late, without := slowest(processed, began[0]), slowest(beside, began[1])
			assert.Less(t, late, 5*without, "a full queue that stops others does it for minutes")
			broker.Eventually(t, soon, func() bool { return g.messages(g.inbox(refusing))+g.messages(refusing) == batch },
				"its messages wait")
			assert.Less(t, g.messages(refusing), batch/2, "it refuses messages")
			assert.Zero(t, testapp.Depth(t, g.orphans()))
			assert.Empty(t, processed.Twice())
		})
	}
}

// slowest is how long the messages took, but one in a hundred. Their tier is a part of it.
func slowest(of *testapp.Ledger, began time.Time) time.Duration {
	var all []time.Duration
	for _, times := range of.Times() {
		all = append(all, times[0].Sub(began))
	}
	return claims.Percentile(all, 0.99)
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
			g.wait(refusing)
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
		})
	}
}
