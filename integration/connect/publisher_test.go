package connect_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestPublisherOfQueues: the topic is the queue, as the app's configuration names it.
func TestPublisherOfQueues(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	err := s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...)
	var failed *failure.Error
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, publish.ErrUnroutable)
	assert.ErrorContains(t, err, `no queue has the name "`+s.Queue("orders")+`": a subscriber of topic "`+s.Queue("orders")+`" must run once first`)

	got := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		assert.Equal(t, "order "+msg.UUID, string(msg.Payload))
		got.Add(msg.UUID + " " + msg.Metadata.Get("trace"))
		return nil
	})
	s.Run()
	msg := testapp.Messages("1")[0]
	msg.Metadata.Set("trace", "t1")
	require.NoError(t, s.Publisher().Publish(s.Queue("orders"), msg))
	got.Wait(t, 1, soon)
	assert.Equal(t, map[string]int{"1 t1": 1}, got.Counts())

	require.NoError(t, s.Publisher().Close(), "it does nothing")
	s.Publish(s.Queue("orders"), "2")
	got.Wait(t, 2, soon)
}

// TestPublisherOfExchanges: it declares the exchange, and a message that no queue gets is an error.
func TestPublisherOfExchanges(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, testapp.FanOut)
	err := s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...)
	require.ErrorIs(t, err, publish.ErrUnroutable)
	assert.ErrorContains(t, err, `no queue is bound to exchange "`+s.Queue("orders")+`"`)
	require.NoError(t, broker.Channel(t).ExchangeDeclarePassive(s.Queue("orders"), "fanout", true, false, false, false,
		nil))

	got := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"),
		got.Handle, retry.Options{Group: "bills"})
	s.Run()
	require.NoError(t, broker.Channel(t).ExchangeDelete(s.Queue("orders"), false, false))
	err = s.Publisher().Publish(s.Queue("orders"), testapp.Messages("2")...)
	require.ErrorIs(t, err, publish.ErrUnroutable, "the binding of the queue is lost")
	require.NoError(t, broker.Channel(t).ExchangeDeclarePassive(s.Queue("orders"), "fanout", true, false, false, false,
		nil), "the exchange is declared again")
}

// unreadable is a marshaler of the app that panics.
type unreadable struct{ amqp.DefaultMarshaler }

func (unreadable) Marshal(*message.Message) (amqp091.Publishing, error) { panic("no such field") }

// TestPublisherWhoseMarshalerPanics: the message is refused, and was not sent.
func TestPublisherWhoseMarshalerPanics(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, func(b *config.Config) { b.AMQP.Marshaler = unreadable{} })
	err := s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...)
	require.ErrorIs(t, err, publish.ErrRefused)
	require.ErrorContains(t, err, "no such field")
}

// TestPublisherVerifiesOnly: it declares nothing.
func TestPublisherVerifiesOnly(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, testapp.FanOut, func(b *config.Config) { b.VerifyOnly = true })
	err := s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...)
	require.ErrorIs(t, err, publish.ErrUnroutable)
	require.ErrorContains(t, err, "VerifyOnly is set")
	require.Error(t, broker.Channel(t).ExchangeDeclarePassive(s.Queue("orders"), "fanout", true, false, false, false, nil))
}

// TestProducedMessageThatCannotBePublishedIsAFailure: it is counted, waits on the tiers, and is a dead letter in the
// end. The message is the one that was delivered, not what the handler made of it, also of its bytes with DeepCopy.
func TestProducedMessageThatCannotBePublishedIsAFailure(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	var mu sync.Mutex
	var events []retry.Event
	s.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.Retried || e.Outcome == retry.DeadLettered {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}
	}))
	s.AddHandler(s.Router, "billing", s.Queue("orders"), s.Queue("invoices"),
		func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set("changed", "yes")
			produced := []*message.Message{msg.Copy()}
			clear(msg.Payload)
			return produced, nil
		}, retry.Options{
			Policy: &retry.Policy{Schedule: backoff.Schedule{50 * time.Millisecond, 100 * time.Millisecond}, DeepCopy: true},
		})
	s.Run()
	s.Publish(s.Queue("orders"), testapp.IDs(20)...)
	dead := s.Queue("orders") + ".dead"
	testapp.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(events) >= 3*20
	}, "each failure is counted")
	assert.Equal(t, 20, testapp.Depth(t, dead))
	testapp.Eventually(t, func() bool { return s.Health().Subscriptions[0].InFlight == 0 }, "all are settled")
	assert.Zero(t, testapp.Depth(t, s.Queue("orders")))

	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, events, 3*20)
	for _, e := range events {
		require.ErrorIs(t, e.Err, retry.ErrNotPublished)
		require.ErrorIs(t, e.Err, publish.ErrUnroutable)
		assert.Contains(t, e.Record.Reason, s.Queue("invoices"), "the record has the publisher's error")
		assert.Equal(t, "*failure.Error", e.Record.ErrorType)
		assert.NotContains(t, e.Metadata, "changed")
		if e.Outcome == retry.DeadLettered {
			assert.Equal(t, retry.DeadReasonExhausted, e.Record.DeadReason)
			assert.Equal(t, 3, e.Record.Failures)
		}
	}
	letter, found, err := broker.Channel(t).Get(dead, true)
	require.NoError(t, err)
	require.True(t, found)
	assert.Contains(t, string(letter.Body), "order ")
	assert.NotContains(t, letter.Headers, "changed")
}
