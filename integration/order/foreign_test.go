package order_test

import (
	"maps"
	"strings"
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
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// A witness is the marshaler of an app. It has the latest delivery of each message, by body.
type witness struct {
	amqp.DefaultMarshaler
	mu   sync.Mutex
	last map[string]amqp091.Delivery
}

func (w *witness) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.last[string(d.Body)]; len(d.Headers) >= len(before.Headers) { // it gets the strings alone, too
		w.last[string(d.Body)] = d
	}
	return w.DefaultMarshaler.Unmarshal(d)
}

// sightOf is what an app can see of a delivery, without what only the library and the broker write.
func sightOf(d amqp091.Delivery) amqp091.Delivery {
	headers := maps.Clone(d.Headers)
	maps.DeleteFunc(headers, func(key string, _ any) bool {
		return strings.HasPrefix(key, "retry_") || strings.HasSuffix(key, "_poisoned") ||
			key == "x-delivery-count" || key == "x-acquired-count"
	})
	if len(headers) == 0 {
		headers = nil
	}
	return amqp091.Delivery{
		Headers: headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Exchange: d.Exchange, RoutingKey: d.RoutingKey,
		Body: d.Body,
	}
}

// foreigners are messages of other publishers, by their bodies. None of the headers that only the library writes is
// believed.
func foreigners() map[string]amqp091.Publishing {
	full := func(headers amqp091.Table) amqp091.Publishing {
		maps.Copy(headers, amqp091.Table{
			"customer": "customer-1", "_watermill_message_uuid": "uuid", "int": int32(7), "text": "v\xff",
			"nested": amqp091.Table{"list": []any{int64(1), nil, []byte{0}}}, "time": time.Unix(1_600_000_000, 0),
			"bytes": []byte{1, 2},
		})
		return amqp091.Publishing{
			ContentType: "text/plain", ContentEncoding: "identity", CorrelationId: "c", ReplyTo: "replies", MessageId: "m",
			Timestamp: time.Unix(1_700_000_000, 0), Type: "t", AppId: "a", Priority: 5, UserId: "guest", Headers: headers,
		}
	}
	all := map[string]amqp091.Publishing{
		"full": full(amqp091.Table{}), "bare": {},
		"left out": full(amqp091.Table{
			"CC": []any{"elsewhere"}, "x-first-death-queue": "before",
			"x-death": []any{amqp091.Table{"queue": "before", "reason": "expired", "count": int64(1)}},
		}),
		"forged": full(amqp091.Table{
			"retry_exchange": "forged", "retry_routing_key": "forged", "retry_user_id": "root", "retry_priority": byte(9),
			"retry_reply_to": "forged", "retry_opt_delivery_time": int64(1), "retry_expiration": "1",
			"retry_cc": []any{"forged"}, "retry_properties": "forged", "retry_unmarshal_error": "forged",
		}),
	}
	for body, p := range all {
		p.Body = []byte(body)
		switch body {
		case "left out":
			p.Expiration = "600000"
		case "forged":
			p.UserId, p.Priority = "", 0
		}
		all[body] = p
	}
	return all
}

// TestAMessageOfAnotherPublisherIsTheSame in a partition as in a queue without an order, at every call: no
// copy is published.
func TestAMessageOfAnotherPublisherIsTheSame(t *testing.T) {
	t.Parallel()
	w, own := newWorld(t), &witness{last: map[string]amqp091.Delivery{}}
	w.config.Policy.Schedule = backoff.Schedule{50 * time.Millisecond}
	w.config.AMQP.Marshaler = own
	var calls sync.Map // "first" and "second" with the body
	handled := testapp.NewLedger()
	a := w.start(retry.Options{}, func(msg *message.Message) error {
		own.mu.Lock()
		defer own.mu.Unlock()
		body := string(msg.Payload)
		calls.Store([]string{"first ", "second "}[handled.Add(body)-1]+body, sightOf(own.last[body]))
		delete(own.last, body)
		return errDown
	})
	shop, plain := "shop_"+w.config.Prefix, "plain_"+w.config.Prefix
	channel := broker.Channel(t)
	require.NoError(t, channel.ExchangeDeclare(shop, amqp091.ExchangeTopic, true, false, false, false, nil))
	_, err := channel.QueueDeclare(plain, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	for _, queue := range []string{w.queue, plain} {
		require.NoError(t, channel.QueueBind(queue, "orders.*", shop, false, nil))
	}
	sent := foreigners()
	for _, p := range sent {
		testapp.Send(t, shop, "orders.created", p)
	}
	testapp.Eventually(t, func() bool { return len(a.Events(retry.DeadLettered)) == len(sent) }, "all have failed twice")
	for _, d := range testapp.Take(t, plain, len(sent)) {
		body := string(d.Body)
		for _, call := range []string{"first ", "second "} {
			seen, _ := calls.Load(call + body)
			assert.Equal(t, sightOf(d), seen, call+body)
		}
	}
}
