package retry_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// generationQueue declares a queue, with a dead-letter queue.
func generationQueue(t *testing.T, arguments amqp091.Table) (queue string) {
	t.Helper()
	queue = broker.Name(t, "generation")
	broker.Clean(t, queue)
	arguments["x-dead-letter-exchange"], arguments["x-dead-letter-routing-key"] = "", queue+".dead"
	existing(t, queue+".dead", nil)
	existing(t, queue, arguments)
	return queue
}

// TestGenerationsCountDeliveries gives a message back each time that it comes, at most 30 times.
func TestGenerationsCountDeliveries(t *testing.T) {
	t.Parallel()
	nack := func(d amqp091.Delivery) error { return d.Nack(false, true) }
	reject := func(d amqp091.Delivery) error { return d.Reject(true) }
	byDefault, counts := is(t, defaultLimit, "20"), is(t, nacksCount, "yes")
	for name, row := range map[string]struct {
		arguments amqp091.Table
		back      func(amqp091.Delivery) error
		gone      bool
	}{
		"default limit, nacks":   {amqp091.Table{}, nack, byDefault && counts},
		"default limit, rejects": {amqp091.Table{}, reject, byDefault},
		"limit of 20, nacks":     {amqp091.Table{"x-delivery-limit": int64(20)}, nack, counts},
		"limit of 20, rejects":   {amqp091.Table{"x-delivery-limit": int64(20)}, reject, true},
		"limit of a million":     {amqp091.Table{"x-delivery-limit": int64(1_000_000)}, reject, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.arguments["x-queue-type"] = "quorum"
			queue := generationQueue(t, row.arguments)
			testapp.Send(t, "", queue, testapp.Orders(1)...)
			channel := broker.Channel(t)
			deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
			require.NoError(t, err)
			dropped, err := channel.Consume(queue+".dead", "", true, false, false, false, nil)
			require.NoError(t, err)
			times, want := 0, 30 // never dropped
			if row.gone {
				want = 21
			}
			for gone := false; times < 30 && !gone; {
				select {
				case d := <-deliveries:
					require.NoError(t, row.back(d))
					times++
				case d := <-dropped:
					gone = true
					assert.Equal(t, "delivery_limit", d.Headers["x-first-death-reason"])
				case <-time.After(5 * time.Minute):
					require.Fail(t, "it neither comes back nor is it dead-lettered")
				}
			}
			assert.Equal(t, want, times)
		})
	}
}

func TestGenerationsTreatForgedDeaths(t *testing.T) {
	t.Parallel()
	queue := generationQueue(t, amqp091.Table{"x-message-ttl": int32(10)})
	testapp.Send(t, "", queue, amqp091.Publishing{Headers: amqp091.Table{"x-death": []any{amqp091.Table{
		"reason": "rejected", "queue": "forged", "count": int64(99), "exchange": "", "routing-keys": []any{"forged"}, "time": time.Unix(1700000000, 0),
	}}}})
	kept := false
	for _, death := range testapp.Take(t, queue+".dead", 1)[0].Headers["x-death"].([]any) {
		kept = kept || death.(amqp091.Table)["queue"] == "forged"
	}
	assert.Equal(t, is(t, forgedDeaths, "kept"), kept)
}

// TestGenerationsAndPriorities: on a TTL queue, a due message waits for a prioritised message that is not due yet.
func TestGenerationsAndPriorities(t *testing.T) {
	t.Parallel()
	var queue string
	broker.Eventually(t, time.Minute, func() bool {
		queue = generationQueue(t, amqp091.Table{"x-queue-type": "quorum", "x-message-ttl": int64(4000),
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("normal"), Expiration: "2000"},
			amqp091.Publishing{Body: []byte("urgent"), Priority: 9})
		return testapp.Depth(t, queue) == 2
	}, "the prioritised message is there before the first one is due")
	first := testapp.Take(t, queue+".dead", 2)[0]
	assert.Equal(t, is(t, prioritiesApart, "yes"), string(first.Body) == "urgent")
}

func TestGenerationsAndTransientQueues(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *config.Config) {
		b.AMQP = amqp.NewNonDurableQueueConfig(broker.URL(t))
		b.WorkQueueMode = topology.Leave
	})
	err := subscribe(t, a, a.Queue("orders"))
	if is(t, transientQueues, "refused") {
		assert.ErrorIs(t, err, topology.ErrTransientQueue)
	} else {
		assert.NoError(t, err)
	}
}
