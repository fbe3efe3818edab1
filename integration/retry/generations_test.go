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

// giveBack gives a message back each time that it comes, at most 30 times, and returns how often it came before the
// broker dropped it: its queue then dead-letters it.
func giveBack(t *testing.T, queue, dead string, back func(amqp091.Delivery) error) int {
	t.Helper()
	channel := broker.Channel(t)
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	dropped, err := channel.Consume(dead, "", true, false, false, false, nil)
	require.NoError(t, err)
	for times := range 30 {
		select {
		case d := <-deliveries:
			require.NoError(t, back(d))
		case <-dropped:
			return times
		case <-time.After(5 * time.Minute):
			require.Fail(t, "it neither comes back nor is it dead-lettered")
		}
	}
	return 30
}

func TestGenerationsCountDeliveries(t *testing.T) {
	t.Parallel()
	g := generationOf(t)
	nack := func(d amqp091.Delivery) error { return d.Nack(false, true) }
	reject := func(d amqp091.Delivery) error { return d.Reject(true) }
	for name, row := range map[string]struct {
		arguments amqp091.Table
		back      func(amqp091.Delivery) error
		gone      bool
	}{
		"default limit, nacks":   {amqp091.Table{}, nack, g.defaultLimit && g.nacksCount},
		"default limit, rejects": {amqp091.Table{}, reject, g.defaultLimit},
		"limit of 20, nacks":     {amqp091.Table{"x-delivery-limit": int64(20)}, nack, g.nacksCount},
		"limit of 20, rejects":   {amqp091.Table{"x-delivery-limit": int64(20)}, reject, true},
		"limit of a million":     {amqp091.Table{"x-delivery-limit": int64(1_000_000)}, reject, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := broker.Name(t, "generation")
			broker.Clean(t, queue)
			existing(t, queue+".dead", nil)
			row.arguments["x-queue-type"] = "quorum"
			row.arguments["x-dead-letter-exchange"], row.arguments["x-dead-letter-routing-key"] = "", queue+".dead"
			existing(t, queue, row.arguments)
			testapp.Send(t, "", queue, testapp.Orders(1)...)
			want := 30 // never dropped
			if row.gone {
				want = 21
			}
			assert.Equal(t, want, giveBack(t, queue, queue+".dead", row.back))
		})
	}
}

func TestGenerationsTreatForgedDeaths(t *testing.T) {
	t.Parallel()
	g := generationOf(t)
	name := broker.Name(t, "generation")
	broker.Clean(t, name)
	existing(t, name, nil)
	existing(t, name+".wait", amqp091.Table{
		"x-message-ttl": int32(10), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name,
	})
	forged := amqp091.Table{"x-death": []any{amqp091.Table{
		"reason": "rejected", "queue": "forged", "count": int64(99), "exchange": "", "routing-keys": []any{"forged"}, "time": time.Unix(1700000000, 0),
	}}}
	testapp.Send(t, "", name+".wait", amqp091.Publishing{Headers: forged})
	deaths := testapp.Take(t, name, 1)[0].Headers["x-death"].([]any)
	kept := false
	for _, death := range deaths {
		kept = kept || death.(amqp091.Table)["queue"] == "forged"
	}
	assert.Equal(t, g.forgedDeaths, kept)
}

// TestGenerationsAndPriorities: on a TTL queue, a due message waits for a prioritised message that is not due yet.
func TestGenerationsAndPriorities(t *testing.T) {
	t.Parallel()
	var back string
	broker.Eventually(t, time.Minute, func() bool {
		back = broker.Name(t, "generation")
		broker.Clean(t, back)
		existing(t, back, nil)
		existing(t, back+".wait", amqp091.Table{
			"x-queue-type": "quorum", "x-message-ttl": int64(4000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": back,
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		})
		testapp.Send(t, "", back+".wait", amqp091.Publishing{Body: []byte("normal"), Expiration: "2000"},
			amqp091.Publishing{Body: []byte("urgent"), Priority: 9})
		return testapp.Depth(t, back+".wait") == 2
	}, "the prioritised message is there before the first one is due")
	first := testapp.Take(t, back, 2)[0]
	assert.Equal(t, generationOf(t).prioritiesApart, string(first.Body) == "urgent")
}

func TestGenerationsAndTransientQueues(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *config.Config) {
		b.AMQP = amqp.NewNonDurableQueueConfig(broker.URL(t))
		b.WorkQueueMode = topology.Leave
	})
	err := subscribe(t, a, a.Queue("orders"))
	if generationOf(t).refusesTransient {
		assert.ErrorIs(t, err, topology.ErrTransientQueue)
	} else {
		assert.NoError(t, err)
	}
}

func TestClassicTiersAreWarnedOf(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *config.Config) { b.QueueType = topology.Classic })
	for _, queue := range []string{"orders", "invoices"} {
		require.NoError(t, subscribe(t, a, a.Queue(queue)))
	}
	assert.Equal(t, 1, a.Log.Warnings("QueueType is classic"))
}
