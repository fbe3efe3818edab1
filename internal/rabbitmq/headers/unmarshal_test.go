package headers_test

import (
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"

	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

const uuid = "0b7d6a0e-6c6b-4b32-8a0b-0d5f2a3a7c11"

// firstDeliveries are deliveries of messages that have not failed.
var firstDeliveries = []struct {
	name     string
	more     float64 // allocations than watermill-amqp's DefaultMarshaler
	delivery amqp091.Delivery
}{
	{"default exchange", 0, amqp091.Delivery{RoutingKey: "orders", Headers: amqp091.Table{publisher.UUIDHeader: uuid, "trace": "abc"}}},
	{"an exchange", 0, amqp091.Delivery{Exchange: "orders", Headers: amqp091.Table{publisher.UUIDHeader: uuid, "trace": "abc"}}},
	{"an exchange, no metadata", 1, amqp091.Delivery{Exchange: "orders", Headers: amqp091.Table{publisher.UUIDHeader: uuid}}},
	{"content type", 0, amqp091.Delivery{ContentType: "application/json", Headers: amqp091.Table{publisher.UUIDHeader: uuid, "trace": "abc"}}},
	{"message id, no metadata", 2, amqp091.Delivery{MessageId: uuid, Headers: amqp091.Table{publisher.UUIDHeader: uuid}}},
	{"message id", 1, amqp091.Delivery{
		ContentType: "application/json", MessageId: uuid, Headers: amqp091.Table{publisher.UUIDHeader: uuid, "trace": "abc"},
	}},
	{"message id, ten headers", 1, amqp091.Delivery{ContentType: "application/json", MessageId: uuid, Headers: amqp091.Table{
		publisher.UUIDHeader: uuid, "1": "a", "2": "b", "3": "c", "4": "d", "5": "e", "6": "f", "7": "g", "8": "h", "9": "i",
	}}},
}

func unmarshalers() map[string]app.Marshaler {
	return map[string]app.Marshaler{
		"watermill-amqp":              amqp.DefaultMarshaler{},
		"own subscriber":              headers.New(amqp.DefaultMarshaler{}, naming.Default),
		"watermill-amqp's subscriber": headers.NewBuilders(amqp.DefaultMarshaler{}, naming.Default, "token"),
	}
}

// unmarshal is a delivery whose message is acked.
func unmarshal(t testing.TB, m app.Marshaler, delivery amqp091.Delivery) *message.Message {
	msg, err := m.Unmarshal(delivery)
	if err != nil {
		t.Fatal(err)
	}
	msg.Ack()
	return msg
}

// writing is an app's marshaler that writes into the headers of the delivery.
type writing struct{ textual }

func (w writing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	d.Headers["trace"], d.Headers["added"] = "changed", "by the app"
	for key := range d.Headers {
		if key != "trace" && key != "added" {
			delete(d.Headers, key)
		}
	}
	return w.textual.Unmarshal(d)
}

func TestMarshalerThatWritesIntoTheHeaders(t *testing.T) {
	for name, sent := range map[string]amqp091.Table{
		"strings":        {"trace": "abc", "removed": "kept", recordkey.Topic: "orders"},
		"a number":       {"trace": "abc", "removed": int64(7)},
		"broker's count": {"trace": "abc", "removed": "kept", "x-delivery-count": int64(3)},
	} {
		m := headers.New(writing{}, naming.Default)
		delivery := amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: maps.Clone(sent)}
		for try := range 3 {
			msg := readBy(t, m, delivery)
			assert.Equal(t, "changed", msg.Metadata["trace"], "%s, try %d: it gets what it asks for", name, try)
			p := writtenBy(t, m, msg)
			assert.Equal(t, sent["removed"], p.Headers["removed"], "%s, try %d", name, try)
			if sent["x-delivery-count"] != nil && try == 0 {
				assert.Equal(t, sent, delivery.Headers, "%s: the subscriber reads the count", name)
			}
			if sent[recordkey.Topic] != nil {
				assert.Equal(t, "orders", msg.Metadata[recordkey.Topic], name)
			}
			delivery = configtest.ComeBack(p)
		}
	}
}

// counted counts the calls of an app's marshaler.
type counted struct {
	textual
	seen *[]amqp091.Table
}

func (c counted) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	*c.seen = append(*c.seen, maps.Clone(d.Headers))
	return c.textual.Unmarshal(d)
}

// TestFirstDeliveryOfRabbitMQ310: a quorum queue of RabbitMQ 3.10 counts from 0, where later versions have no header.
func TestFirstDeliveryOfRabbitMQ310(t *testing.T) {
	var seen []amqp091.Table
	m := headers.New(counted{seen: &seen}, naming.Default)
	readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{"trace": "abc", "x-delivery-count": int64(0)}})
	assert.Equal(t, []amqp091.Table{{"trace": "abc"}}, seen)

	seen = nil
	readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{"trace": "abc", "x-delivery-count": int64(1)}})
	assert.Equal(t, []amqp091.Table{{"trace": "abc", "x-delivery-count": int64(1)}, {"trace": "abc"}}, seen, "an app may read the count")
}

// TestMessagesAreApart: messages that are unmarshaled at the same time get nothing of each other, also where they share properties.
func TestMessagesAreApart(t *testing.T) {
	m := headers.New(textual{}, naming.Default)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 500 {
				id := fmt.Sprintf("%d/%d", worker, i)
				sent := amqp091.Delivery{
					Acknowledger: configtest.Settled{}, Exchange: "shop", RoutingKey: strconv.Itoa(i), Type: "order", Headers: amqp091.Table{"id": id},
				}
				if i%3 == 0 {
					sent.MessageId, sent.Headers["number"] = id, int64(i)
				}
				msg, err := m.Unmarshal(sent)
				if !assert.NoError(t, err) {
					return
				}
				p, err := m.Marshal(msg)
				assert.NoError(t, err)
				assert.Equal(t, sent.MessageId, p.MessageId)
				assert.Equal(t, "order", p.Type)
				assert.Equal(t, strconv.Itoa(i), p.Headers["retry_routing_key"])
				assert.Equal(t, id, p.Headers["id"])
				assert.Equal(t, sent.Headers["number"], p.Headers["number"])
			}
		})
	}
	group.Wait()
}
