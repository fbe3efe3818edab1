package deadletter_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestTheCanaryIsLettersThatWereSent: letters whose work queue is gone stay, and are no part of it. A lost connection
// does not prolong the watch: up to RabbitMQ 4.2 the broker closes a channel that has letters for longer than 30
// minutes, and a canary that is watched for longer would be watched for ever.
func TestTheCanaryIsLettersThatWereSent(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		const gone, count, canary, watched = 10, 30, 10, 20 * time.Minute
		quorum := amqp091.Table{"x-queue-type": "quorum"}
		b.broker.DeclareQueue("orders", quorum)
		consume := func() {
			connection, err := amqp091.DialConfig(modelURI, amqp091.Config{Dial: b.broker.Dial, Heartbeat: time.Hour})
			require.NoError(t, err)
			channel, err := connection.Channel()
			require.NoError(t, err)
			_, err = channel.Consume("orders", "", true, false, false, false, nil)
			require.NoError(t, err)
		}
		consume()
		b.broker.DeclareQueue("poison", quorum)
		for i := range gone + count {
			topic := "orders"
			if i < gone {
				topic = "gone"
			}
			b.broker.Publish("", "poison", amqp091.Publishing{Headers: amqp091.Table{
				"_watermill_message_uuid": fmt.Sprint(i), "reason_poisoned": "down", "topic_poisoned": topic}})
		}
		began := time.Now()
		ends, sent, waited := map[time.Time]bool{}, map[int]bool{}, false
		summary, err := b.store.Redrive(t.Context(), "poison", letters.Redrive{
			Canary: canary, CanaryWait: watched, Progress: func(p letters.Progress) {
				waited = waited || p.Phase == letters.Waiting
				if p.Phase != letters.Watching {
					return
				}
				if len(ends) == 0 {
					for number := range b.broker.Connections() {
						b.broker.Disturb(number, model.Cut)
					}
					consume()
				}
				ends[p.Until], sent[p.Done] = true, true
			},
		})
		require.ErrorIs(t, err, letters.ErrNoTarget)
		assert.Equal(t, letters.Summary{Total: gone + count, Done: count, Kept: gone}, summary)
		assert.Equal(t, map[int]bool{canary: true}, sent)
		assert.True(t, waited, "the connection was lost")
		assert.Len(t, ends, 1)
		assert.Less(t, time.Since(began), watched+time.Minute)
	})
}

// TestACanaryOfOrphansNeedsAConsumer of each work queue that they go to: the exchange has none.
func TestACanaryOfOrphansNeedsAConsumer(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		b.declare(topologyOf("orders", "", nil, time.Second), topologyOf("mail\ns", "", nil, time.Second))
		_, err := b.channel.Consume("orders", "", true, false, false, false, nil)
		require.NoError(t, err)
		b.publish("retry.orphans", "1s.orders", 1)
		b.publish("retry.orphans", "1s.mail\ns", 1)
		summary, err := b.store.Redrive(t.Context(), "retry.orphans", letters.Redrive{Canary: 2})
		require.ErrorContains(t, err, `the queue "mail\ns" has no consumer`)
		assert.Equal(t, 1, summary.Done)
		assert.Empty(t, b.broker.Messages("mail\ns"))
	})
}

// TestARedriveToTheQueueItself would remove the record of each letter and bring none back. One to a queue that does not
// exist brings none back either.
func TestARedriveToTheQueueItself(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		b.broker.DeclareQueue("orders.dead", amqp091.Table{"x-queue-type": "quorum"})
		metadata := message.Metadata{}
		retry.Record{Failures: 1, Reason: "down"}.Write(metadata)
		headers := amqp091.Table{}
		for key, value := range metadata {
			headers[key] = value
		}
		b.broker.Publish("", "orders.dead", amqp091.Publishing{Headers: headers})
		for _, dry := range []bool{true, false} {
			summary, err := b.store.Redrive(t.Context(), "orders.dead", letters.Redrive{To: "orders.dead", DryRun: dry})
			require.ErrorIs(t, err, letters.ErrNoTarget)
			assert.Equal(t, letters.Summary{Total: 1, Kept: 1}, summary)
		}
		for _, dry := range []bool{true, false} {
			summary, err := b.store.Redrive(t.Context(), "orders.dead", letters.Redrive{To: "ordres", DryRun: dry})
			require.ErrorIs(t, err, letters.ErrNoTarget)
			require.ErrorContains(t, err, `Redrive.To is "ordres", a queue that does not exist`)
			assert.NotContains(t, err.Error(), "discard", "a wrong name is no reason to remove letters")
			assert.Equal(t, letters.Summary{Total: 1, Kept: 1}, summary)
		}
		for letter, err := range b.store.Browse(t.Context(), "orders.dead", letters.Filter{}) {
			require.NoError(t, err)
			assert.Equal(t, "down", letter.Record.Reason)
		}
	})
}

// TestARedriveByAnotherUser than that of the URI: the broker takes only the user-id of the one who logs in.
func TestARedriveByAnotherUser(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		b.declare(topologyOf("orders", "", nil, time.Second))
		own := amqp091.Config{Dial: b.broker.Dial, SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "operator"}}}
		store, err := deadletter.Open(deadletter.Config{URI: modelURI, AMQP: &own}, nil)
		require.NoError(t, err)
		defer store.Close()
		for _, user := range []string{"guest", "operator"} {
			b.broker.Publish("retry", "dead.orders", amqp091.Publishing{UserId: user})
		}
		_, err = store.Redrive(t.Context(), "orders.dead", letters.Redrive{})
		require.NoError(t, err)
		back := b.broker.Messages("orders")
		require.Len(t, back, 2)
		assert.ElementsMatch(t, []string{"", "operator"}, []string{back[0].UserId, back[1].UserId})
	})
}

// TestARedriveBesideAReader: what another reader has is not sent, and the error states that.
func TestARedriveBesideAReader(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		const count, taken = 300, 100
		b.declare(topologyOf("orders", "", nil, time.Second))
		b.publish("retry", "dead.orders", count)
		var reading sync.Once
		summary, err := b.store.Redrive(t.Context(), "orders.dead", letters.Redrive{Progress: func(letters.Progress) {
			reading.Do(func() {
				for range taken {
					_, found, err := b.channel.Get("orders.dead", false)
					assert.True(t, found && err == nil)
				}
			})
		}})
		require.ErrorContains(t, err, "100 letters were not looked at")
		assert.Equal(t, letters.Summary{Total: count, Done: count - taken, Unseen: taken}, summary)
		require.NoError(t, b.channel.Close())
		summary, err = b.store.Redrive(t.Context(), "orders.dead", letters.Redrive{})
		require.NoError(t, err)
		assert.Equal(t, letters.Summary{Total: taken, Done: taken}, summary)
		assert.Equal(t, count, b.broker.PurgeQueue("orders"))
	})
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		all := func(queue string, filter letters.Filter) (failed []error) {
			for _, err := range b.store.Browse(t.Context(), queue, filter) {
				failed = append(failed, err)
			}
			_, redriven := b.store.Redrive(t.Context(), queue, letters.Redrive{Filter: filter})
			_, discarded := b.store.Discard(t.Context(), queue, letters.Discard{Filter: filter})
			return append(failed, redriven, discarded)
		}
		for _, err := range all("missing.dead", letters.Filter{}) {
			require.ErrorIs(t, err, letters.ErrNoQueue)
			require.ErrorContains(t, err, "missing.dead")
		}
		for _, err := range all("missing.dead", letters.Filter{OlderThan: -1}) {
			require.ErrorContains(t, err, "Filter.OlderThan")
		}
		require.NoError(t, b.store.Close())
		require.NoError(t, b.store.Close())
		for _, err := range all("missing.dead", letters.Filter{}) {
			require.ErrorIs(t, err, letters.ErrClosed)
		}
	})
}
