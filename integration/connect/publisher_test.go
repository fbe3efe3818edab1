package connect_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestPublisherOfQueues: the topic is the queue, as the app's configuration names it.
func TestPublisherOfQueues(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, _ *model.Broker, c config.Config) {
		s := testapp.Connect(t, c)
		err := s.Publisher().Publish("orders", testapp.Messages("1")...)
		var failed *failure.Error
		require.ErrorAs(t, err, &failed)
		require.ErrorIs(t, err, publish.ErrUnroutable)
		assert.ErrorContains(t, err, `no queue has the name "orders": a subscriber of topic "orders" must run once first`)

		got := testapp.NewLedger()
		s.Handle("orders", 1, func(msg *message.Message) error {
			got.Add(string(msg.Payload) + " " + msg.Metadata.Get("trace"))
			return nil
		})
		s.Run()
		msg := testapp.Messages("1")[0]
		msg.Metadata.Set("trace", "t1")
		require.NoError(t, s.Publisher().Publish("orders", msg))
		require.NoError(t, s.Publisher().Close(), "it does nothing")
		s.Publish("orders", "2")
		time.Sleep(time.Second)
		assert.Equal(t, map[string]int{"order 1 t1": 1, "order 2 ": 1}, got.Counts())
	})
}

// TestPublisherOfExchanges: it declares the exchange, also once more, and a message that no queue gets is an error. With
// VerifyOnly it declares nothing.
func TestPublisherOfExchanges(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		c.VerifyOnly = true
		err := testapp.Connect(t, c).Publisher().Publish("orders", testapp.Messages("1")...)
		require.ErrorIs(t, err, publish.ErrUnroutable)
		require.ErrorContains(t, err, "VerifyOnly is set")
		require.NotContains(t, b.Exchanges(), "orders")

		c.VerifyOnly = false
		s := testapp.Connect(t, c)
		for range 2 {
			err := s.Publisher().Publish("orders", testapp.Messages("1")...)
			require.ErrorIs(t, err, publish.ErrUnroutable)
			assert.ErrorContains(t, err, `no queue is bound to exchange "orders"`)
			require.Contains(t, b.Exchanges(), "orders")
			b.DeleteExchange("orders")
		}
	}, testapp.FanOut)
}

// unreadable is a marshaler of the app that panics.
type unreadable struct{ amqp.DefaultMarshaler }

func (unreadable) Marshal(*message.Message) (amqp091.Publishing, error) { panic("no such field") }

// TestPublisherWhoseMarshalerPanics: the message is refused, and was not sent.
func TestPublisherWhoseMarshalerPanics(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, _ *model.Broker, c config.Config) {
		err := testapp.Connect(t, c).Publisher().Publish("orders", testapp.Messages("1")...)
		require.ErrorIs(t, err, publish.ErrRefused)
		require.ErrorContains(t, err, "no such field")
	}, func(c *config.Config) { c.AMQP.Marshaler = unreadable{} })
}

// TestProducedMessageThatCannotBePublishedIsAFailure: it is counted, waits on the tiers, and is a dead letter in the
// end. The message is the one that was delivered, not what the handler made of it, also of its bytes with DeepCopy.
func TestProducedMessageThatCannotBePublishedIsAFailure(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		s := testapp.Connect(t, c)
		s.AddHandler(s.Router, "billing", "orders", "invoices", func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set("changed", "yes")
			produced := []*message.Message{msg.Copy()}
			clear(msg.Payload)
			return produced, nil
		}, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Second, 2 * time.Second}, DeepCopy: true}})
		s.Run()
		s.Publish("orders", testapp.IDs(20)...)
		time.Sleep(time.Minute)
		assert.Empty(t, b.Messages("orders"))
		dead := s.Events(retry.DeadLettered)
		require.Len(t, dead, 20)
		for _, e := range dead {
			assert.Equal(t, retry.DeadReasonExhausted, e.Record.DeadReason)
			assert.Equal(t, 3, e.Record.Failures)
		}
		events := append(s.Events(retry.Retried), dead...)
		require.Len(t, events, 3*20)
		for _, e := range events {
			require.ErrorIs(t, e.Err, retry.ErrNotPublished)
			require.ErrorIs(t, e.Err, publish.ErrUnroutable)
			assert.Contains(t, e.Record.Reason, "invoices", "the record has the publisher's error")
			assert.Equal(t, "*failure.Error", e.Record.ErrorType)
			assert.NotContains(t, e.Metadata, "changed")
		}
		for _, letter := range b.Messages("orders.dead") {
			assert.Contains(t, string(letter.Body), "order ")
			assert.NotContains(t, letter.Headers, "changed")
		}
	})
}

// TestRedeliveredMark: an app on v3 sees which messages the broker delivers again, as with its own subscriber.
func TestRedeliveredMark(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, _ *model.Broker, c config.Config) {
		s := testapp.Connect(t, c)
		marks, calls := make(chan string, 3), testapp.NewLedger() // a call goes on after its nack
		s.Handle("orders", 1, func(msg *message.Message) error {
			marks <- msg.Metadata.Get("_watermill_amqp_redelivered")
			switch calls.Add(msg.UUID) {
			case 1:
				msg.Nack()
			case 2:
				return errDown
			}
			return nil
		})
		s.Run()
		s.Publish("orders", "1")
		want := map[string][]string{"v2": {"", "", ""}, "v3": {"", "true", ""}} // nacked, failed, processed
		assert.Equal(t, want[amqp.Major], []string{<-marks, <-marks, <-marks})
	})
}
