package deadletter_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// poison returns letters of Watermill's PoisonQueue.
func poison(topic string, n int) []amqp091.Publishing {
	all := testapp.Orders(n)
	for i := range all {
		all[i].Headers["reason_poisoned"], all[i].Headers["topic_poisoned"] = errDown.Error(), topic
	}
	return all
}

// TestTheCanaryIsLettersThatWereSent: letters whose work queue is gone stay, and are no part of the canary.
func TestTheCanaryIsLettersThatWereSent(t *testing.T) {
	t.Parallel()
	const canary, count = 10, 50
	name := broker.Name(t, "canary")
	broker.Clean(t, name)
	queue, gone, parked := "orders_"+name, "gone_"+name, "poison_"+name
	declare(t, queue, amqp091.Table{"x-queue-type": "quorum"})
	declare(t, parked, amqp091.Table{"x-queue-type": "quorum"})
	testapp.Send(t, "", parked, poison(gone, canary)...)
	testapp.Send(t, "", parked, poison(queue, count)...)
	watched := -1
	summary, err := open(t, broker.URL(t), name).Redrive(t.Context(), parked, letters.Redrive{
		Canary: canary, CanaryWait: time.Second, Progress: func(p letters.Progress) {
			if p.Phase == letters.Watching {
				watched = p.Done
			}
		},
	})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	assert.Equal(t, letters.Summary{Total: canary + count, Done: count, Kept: canary}, summary)
	assert.Equal(t, canary, watched)
}

// TestARedriveToTheQueueItself would remove the record of each letter and bring none back.
func TestARedriveToTheQueueItself(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	bury(t, a, queue, 3)
	letterQueue, store := deadletter.QueueOf(queue), open(t, broker.URL(t), a.Name)
	for _, dry := range []bool{true, false} {
		summary, err := store.Redrive(t.Context(), letterQueue, letters.Redrive{To: letterQueue, DryRun: dry})
		require.ErrorIs(t, err, letters.ErrNoTarget)
		assert.Equal(t, letters.Summary{Total: 3, Kept: 3}, summary)
	}
	assert.Equal(t, errDown.Error(), list(t, store, letterQueue)[0].Record.Reason)
}

// TestASlowRedriveSendsNoLetterTwice: from RabbitMQ 4.3 on a quorum queue takes letters back from a consumer that has
// them for longer than the timeout of the queue, and accepts their acknowledgement without an effect.
func TestASlowRedriveSendsNoLetterTwice(t *testing.T) {
	t.Parallel()
	const count = 12
	a := testapp.New(t)
	queue, parked := a.Queue("orders"), a.Queue("parked")
	a.Declare(queue)
	declare(t, parked, amqp091.Table{"x-queue-type": "quorum", "x-consumer-timeout": int64(1000)})
	testapp.Send(t, "", parked, dead(queue, count)...)
	store := open(t, broker.URL(t), a.Name)
	summary, err := store.Redrive(t.Context(), parked, letters.Redrive{To: queue, Rate: 3, Limit: count - 1})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: count - 1, Unseen: 1}, summary)
	assert.Equal(t, 1, testapp.Depth(t, parked))
	assert.Equal(t, count-1, testapp.Depth(t, queue))
}
