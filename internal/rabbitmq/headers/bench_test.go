package headers_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/retry"
)

// marshaling is a publisher that only marshals.
type marshaling struct{ app.Marshaler }

func (m marshaling) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		if _, err := m.Marshal(msg); err != nil {
			return err
		}
	}
	return nil
}

func (marshaling) Close() error { return nil }

// BenchmarkFailure is a failure in this process: a delivery becomes a message, its handler fails in a goroutine of its own, as the
// router calls it, and the copy is made.
func BenchmarkFailure(b *testing.B) {
	m := headers.New(app.Plain{Marshaler: textual{}, UUIDKey: publisher.UUIDHeader}, naming.Default)
	settings := eventtest.Settings{
		Publisher: marshaling{m}, Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 3)},
		Destination: func(c backend.Copy) (backend.Destination, error) {
			return backend.Destination{Topic: naming.RetryKey(c.Topic, c.Tier), Queue: naming.Default.TierQueue(c.Topic, c.Tier)}, nil
		},
	}
	tiered, err := settings.Make(nil)
	if err != nil {
		b.Fatal(err)
	}
	failed := errors.New("measured")
	handler := tiered.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, failed })
	first := amqp091.Delivery{
		Acknowledger: configtest.Settled{}, Body: make([]byte, 512), Headers: amqp091.Table{publisher.UUIDHeader: "a"},
	}
	done := make(chan error)
	for name, delivery := range map[string]amqp091.Delivery{"first": first, "again": retried(b, m, first)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				msg, err := m.Unmarshal(delivery)
				if err != nil {
					b.Fatal(err)
				}
				go func() { _, err := handler(msg); done <- err }()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// retried is a delivery as it comes back from a tier.
func retried(b *testing.B, m app.Marshaler, first amqp091.Delivery) amqp091.Delivery {
	b.Helper()
	msg, err := m.Unmarshal(first)
	if err != nil {
		b.Fatal(err)
	}
	measured.Write(msg.Metadata)
	copied, err := m.Marshal(msg)
	if err != nil {
		b.Fatal(err)
	}
	copied.Headers["x-death"] = []any{amqp091.Table{"count": int64(1), "queue": "orders.retry.1s", "reason": "expired"}}
	copied.Headers["x-first-death-queue"] = "orders.retry.1s"
	copied.Headers["x-last-death-queue"] = "orders.retry.1s"
	return configtest.ComeBack(copied)
}

var measured = retry.Record{
	Failures: 1, FirstFailedAt: time.Now(), LastFailedAt: time.Now(), DueAt: time.Now(),
	Reason: "measured", ErrorType: "*errors.errorString", Topic: "orders", Handler: "billing",
}
