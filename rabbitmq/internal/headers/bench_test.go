package headers_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/headers"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

// BenchmarkRetry is one retry of a message: it comes back from its tier, and its copy is made.
func BenchmarkRetry(b *testing.B) {
	m := headers.New(textual{}, naming.Default)
	record := middleware.Record{
		Failures: 1, FirstFailedAt: time.Now(), LastFailedAt: time.Now(), DueAt: time.Now(),
		Reason: "measured", ErrorType: "*errors.errorString", Topic: "orders", Handler: "billing",
	}
	first := amqp091.Delivery{Acknowledger: configtest.Settled{}, Body: make([]byte, 512), Headers: amqp091.Table{publisher.UUIDHeader: "a"}}
	msg, err := m.Unmarshal(first)
	if err != nil {
		b.Fatal(err)
	}
	record.Write(msg.Metadata)
	copied, err := m.Marshal(msg)
	if err != nil {
		b.Fatal(err)
	}
	copied.Headers["x-death"] = []any{amqp091.Table{"count": int64(1), "queue": "orders.retry.1s", "reason": "expired"}}
	copied.Headers["x-first-death-queue"] = "orders.retry.1s"
	copied.Headers["x-last-death-queue"] = "orders.retry.1s"
	delivery := configtest.ComeBack(copied)
	b.ReportAllocs()
	for b.Loop() {
		msg, err := m.Unmarshal(delivery)
		if err != nil {
			b.Fatal(err)
		}
		record.Write(msg.Metadata)
		if _, err := m.Marshal(msg); err != nil {
			b.Fatal(err)
		}
	}
}
