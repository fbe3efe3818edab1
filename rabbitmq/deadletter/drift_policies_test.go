package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// TestPoliciesOfEachQueue: what a policy does depends on what messages do on the queue, and on its arguments.
func TestPoliciesOfEachQueue(t *testing.T) {
	t.Parallel()
	type set = management.Arguments
	work := topology.Queue{Name: "orders", Durable: true}
	config := topology.Config{Tiers: backoff.Schedule{time.Second}.Tiers()}
	plain := topology.New(config, work)
	protected := plain.WorkQueue
	ordered := topology.New(topology.Config{Tiers: config.Tiers, Partitions: 1, Prefetch: 1}, work)
	for name, row := range map[string]struct {
		queue  topology.Queue
		policy management.Arguments
		want   string // kind, argument and reason; empty: nothing
	}{
		"age of what is handled": {
			protected, set{"message-ttl": int64(500)},
			`note message-ttl <untaken> becomes a dead letter, as "expired"`,
		},
		"age, lower by arguments": {
			with(protected, "x-message-ttl", int32(400)), set{"message-ttl": int64(500)},
			"",
		},
		"age, higher by arguments": {
			with(protected, "x-message-ttl", int32(600)), set{"message-ttl": int64(500)},
			`note message-ttl <untaken> becomes a dead letter, as "expired"`,
		},
		"age of an unprotected one": {
			work, set{"message-ttl": int64(500)},
			"policy message-ttl <untaken> is dropped",
		},
		"age, protected by a policy": {
			work, set{"message-ttl": int64(500), "dead-letter-exchange": "retry", "dead-letter-routing-key": "dead.orders"},
			`note message-ttl <untaken> becomes a dead letter, as "expired"`,
		},
		"age of a partition": {
			ordered.Queues[4], set{"message-ttl": int64(500)},
			"policy message-ttl <untaken> becomes a dead letter, and a gap in the order of its key",
		},
		"age of a tier": {
			plain.Queues[2], set{"message-ttl": int64(0)},
			"policy message-ttl messages come back after 0s in place of 1s",
		},
		"idle work queue": {
			protected, set{"expires": int64(500)},
			"policy expires the broker deletes a queue that no consumer reads, with the messages in it",
		},
		"few deliveries": {
			protected, set{"delivery-limit": int64(3)},
			"note delivery-limit a message that was delivered so often without an ack becomes a dead letter",
		},
		"many deliveries": {
			protected, set{"delivery-limit": int64(30)},
			"",
		},
		"deliveries of the protection": {
			work, set{"delivery-limit": int64(20), "dead-letter-exchange": "retry", "dead-letter-routing-key": "dead.orders"},
			"",
		},
		"length": {
			with(protected, "x-overflow", nil), set{"max-length": int64(3)},
			"note max-length the oldest message of a queue that is longer becomes a dead letter",
		},
		"length that refuses": {
			protected, set{"max-length": int64(3)},
			"note max-length a queue at its limit refuses messages, and retries that come back are late by 3 to 6 minutes",
		},
		"overflow of a tier": {
			plain.Queues[2], set{"overflow": "drop-head"},
			"policy overflow the broker forwards messages of this queue without confirms, and can lose them",
		},
		"overflow, the same": {
			protected, set{"overflow": "reject-publish"},
			"",
		},
		"overflow of letters": {
			plain.Queues[1], set{"overflow": "drop-head"},
			"",
		},
		"delayed retry": {
			protected, set{"delayed-retry-type": "all"},
			"note delayed-retry-type what a handler gives back waits in the work queue, and is lost with it",
		},
		"another's dead-letter key": {
			work, set{"dead-letter-exchange": "retry", "dead-letter-routing-key": "dead.mails"},
			`policy dead-letter-routing-key a message that the broker itself gives up does not get to its dead letters: these need the key "dead.orders"`,
		},
		"a key that arguments overrule": {
			protected, set{"dead-letter-exchange": "retry", "dead-letter-routing-key": "dead.mails"},
			"",
		},
		"a key of all queues": {
			plain.Queues[2], set{"dead-letter-routing-key": "x"},
			"policy dead-letter-routing-key messages leave the tier with this key, and do not come back to their work queue",
		},
	} {
		t.Run(name, func(t *testing.T) {
			have := management.Queue{Name: row.queue.Name, Policy: "all", Effective: row.policy,
				Durable: true, Arguments: management.Arguments(row.queue.Arguments)}
			c := comparison{there: management.Inventory{Queues: map[string]management.Queue{row.queue.Name: have}}}
			if row.queue.Name == work.Name {
				of := topology.Config{Tiers: config.Tiers, WorkQueueMode: topology.Leave}
				c.workQueue(Wanted{Topology: of, Queue: row.queue})
			} else {
				c.queue(row.queue)
			}
			got := ""
			for _, d := range c.Differences {
				got += string(d.Kind) + " " + d.Argument + " " + d.Reason
				assert.Contains(t, d.Have, `by the policy "all"`)
			}
			const untaken = "a message that no handler has taken after this time (in ms)"
			assert.Equal(t, row.want, strings.ReplaceAll(got, untaken, "<untaken>"))
		})
	}
}

// with is a queue with another argument, or without it.
func with(queue topology.Queue, key string, value any) topology.Queue {
	arguments := management.Arguments{}
	for k, v := range queue.Arguments {
		arguments[k] = v
	}
	if arguments[key] = value; value == nil {
		delete(arguments, key)
	}
	queue.Arguments = map[string]any(arguments)
	return queue
}
