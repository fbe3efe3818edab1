package deadletter_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestALetterOfTheBroker: its record is in x-death, which stays when the letter is exported and imported.
func TestALetterOfTheBroker(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	a.Declare(queue) // its delivery limit is 20
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	letterQueue, store := deadletter.QueueOf(queue), open(t, broker.URL(t), a.Name)
	channel := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		for {
			d, found, err := channel.Get(queue, false)
			require.NoError(t, err)
			if !found {
				return testapp.Depth(t, letterQueue) == 1
			}
			require.NoError(t, d.Reject(true))
		}
	}, "the broker gives the message up")
	l := list(t, store, letterQueue)[0]
	assert.Equal(t, letters.Broker, l.Kind)
	assert.Equal(t, testapp.ID(0), l.ID)
	assert.Equal(t, queue, l.Target)
	assert.Equal(t, retry.DeadReason("delivery_limit"), l.Record.DeadReason)
	assert.Equal(t, 1, l.Record.Failures)
	assert.Contains(t, l.Record.Reason, queue)
	assert.WithinDuration(t, time.Now(), l.DeadAt(), time.Hour)
	assert.Equal(t, queue, l.Properties["routing_key"])

	file, err := exported(t, store, letterQueue)
	require.NoError(t, err)
	_, err = store.Import(t.Context(), file, deadletter.Import{})
	require.NoError(t, err)
	assert.Equal(t, []*letters.Letter{l}, list(t, store, letterQueue))

	_, err = store.Redrive(t.Context(), letterQueue, letters.Redrive{By: "ann@ops"})
	require.NoError(t, err)
	d := testapp.Take(t, queue, 1)[0]
	for _, key := range []string{"x-death", "x-first-death-queue", "x-last-death-queue", "x-first-death-reason"} {
		assert.NotContains(t, d.Headers, key)
	}
	history, redriven := letters.ReadRedriven(message.Metadata{recordkey.Redriven: d.Headers[recordkey.Redriven].(string)})
	require.True(t, redriven)
	assert.Equal(t, retry.DeadReason("delivery_limit"), history.Redrives[0].DeadReason)
	assert.Equal(t, "ann@ops", history.Redrives[0].By)
}

// TestALetterOfAPoisonQueue goes back to its topic, which is the work queue of a stock configuration.
func TestALetterOfAPoisonQueue(t *testing.T) {
	t.Parallel()
	name := broker.Name(t, "poison")
	broker.Clean(t, name)
	queue, poisoned := "orders_"+name, "poison_"+name
	app := amqp.NewDurableQueueConfig(broker.URL(t))
	logger := watermill.NopLogger{}
	subscriber, err := amqp.NewSubscriber(app, logger)
	require.NoError(t, err)
	publisher, err := amqp.NewPublisher(app, logger)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	declare(t, poisoned, nil)
	poison, err := watermillmw.PoisonQueue(publisher, poisoned)
	require.NoError(t, err)
	router := message.NewDefaultRouter(logger)
	handled := testapp.NewLedger()
	router.AddConsumerHandler("billing", queue, subscriber, func(msg *message.Message) error {
		if handled.Add(msg.UUID) == 1 {
			return errDown
		}
		assert.NotContains(t, msg.Metadata, watermillmw.ReasonForPoisonedKey)
		assert.Equal(t, "abc", msg.Metadata["trace"])
		return nil
	}).AddMiddleware(poison)
	stop := testapp.Start(t, router)
	defer stop()
	msg := message.NewMessage("order-1", []byte("order 1"))
	msg.Metadata.Set("trace", "abc")
	require.NoError(t, publisher.Publish(queue, msg))
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, poisoned) == 1 }, "a poisoned message")

	store := open(t, broker.URL(t), name)
	l := list(t, store, poisoned)[0]
	assert.Equal(t, letters.Poison, l.Kind)
	assert.Equal(t, "order-1", l.ID)
	assert.Equal(t, queue, l.Target)
	assert.Equal(t, errDown.Error(), l.Record.Reason)
	assert.Equal(t, "billing", l.Record.Handler)
	assert.Equal(t, message.Metadata{"trace": "abc"}, l.Metadata)

	summary, err := store.Redrive(t.Context(), poisoned, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)
	broker.Eventually(t, soon, func() bool { return handled.Counts()["order-1"] == 2 }, "the message is handled again")
	assert.Zero(t, testapp.Depth(t, poisoned))
}

// TestALetterWithoutARecord needs the name of its work queue.
func TestALetterWithoutARecord(t *testing.T) {
	t.Parallel()
	name := broker.Name(t, "unknown")
	broker.Clean(t, name)
	queue, parked := "orders_"+name, "parked_"+name
	declare(t, queue, amqp091.Table{"x-queue-type": "quorum"})
	declare(t, parked, amqp091.Table{"x-queue-type": "quorum"})
	testapp.Send(t, "", parked, amqp091.Publishing{Body: []byte("a"), Headers: typed(), Priority: 3},
		amqp091.Publishing{Body: []byte("b"), MessageId: "m-1"})
	store := open(t, broker.URL(t), name)
	all := list(t, store, parked)
	require.Len(t, all, 2)
	slices.SortFunc(all, func(a,
		b *letters.Letter) int {
		return strings.Compare(a.ID, b.ID)
	}) // RabbitMQ 4.3 has an order of priorities
	assert.Regexp(t, "^#[0-9a-f]{16}$", all[0].ID)
	assert.Equal(t, "m-1", all[1].ID)
	for _, l := range all {
		assert.Equal(t, letters.Unknown, l.Kind)
		assert.Empty(t, l.Target)
		assert.Zero(t, l.Record)
	}
	summary, err := store.Redrive(t.Context(), parked, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	require.ErrorContains(t, err, "Redrive.To")
	assert.Equal(t, letters.Summary{Total: 2, Kept: 2}, summary)

	summary, err = store.Redrive(t.Context(), parked,
		letters.Redrive{To: queue, Filter: letters.Filter{IDs: []string{all[0].ID}}})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 2, Done: 1, Other: 1}, summary)
	d := testapp.Take(t, queue, 1)[0]
	delete(d.Headers, recordkey.Redriven)
	delete(d.Headers, "x-delivery-count")
	delete(d.Headers, "retry_publish_id")
	assert.Equal(t, typed(), d.Headers)
	assert.EqualValues(t, 3, d.Priority)
	assert.Equal(t, "a", string(d.Body))
}
