package headers_test

import (
	"maps"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// forged are headers that only the library writes, as another publisher sends them.
var forged = amqp091.Table{
	"retry_exchange": "forged", "retry_routing_key": "forged", "retry_user_id": "root", "retry_priority": byte(9),
	"retry_reply_to": "forged", "retry_expiration": "1", "retry_opt_delivery_time": int64(1), "retry_cc": []any{"forged"},
}

// partitioned is the delivery of a partition of what was published there.
func partitioned(p amqp091.Publishing) amqp091.Delivery {
	return amqp091.Delivery{
		Exchange: "orders.order", RoutingKey: "3", Headers: p.Headers, ContentType: p.ContentType,
		ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationId: p.CorrelationId,
		ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId, Timestamp: p.Timestamp, Type: p.Type,
		UserId: p.UserId, AppId: p.AppId, Body: p.Body,
	}
}

// TestAPartitionHasWhatTheWorkQueueHad: what the broker would act on is in other headers meanwhile.
func TestAPartitionHasWhatTheWorkQueueHad(t *testing.T) {
	full := amqp091.Delivery{
		Exchange: "shop", RoutingKey: "orders.created", UserId: "web", ReplyTo: unfit.DirectReplyTo, Expiration: "1",
		Priority: 5, ContentType: "a", ContentEncoding: "b", CorrelationId: "c", MessageId: "d", Type: "e", AppId: "f",
		Timestamp: time.Unix(1, 0), DeliveryMode: 1, Body: []byte("body"),
		Headers: amqp091.Table{
			"x-opt-delivery-time": int64(1), "CC": []any{"mail"}, "x-death": []any{"a"}, "x-first-death-queue": "b",
			"own": int32(1), "retry_record": "n1:1", recordkey.Failures: "2",
		},
	}
	direct := amqp091.Delivery{RoutingKey: "orders"}
	copied := amqp091.Delivery{RoutingKey: "orders.created"} // to the default exchange, with a CC
	for name, first := range map[string]amqp091.Delivery{"full": full, "direct": direct, "copied": copied} {
		t.Run(name, func(t *testing.T) {
			sent := first
			sent.Headers = maps.Clone(first.Headers)
			if name == "full" {
				maps.Copy(sent.Headers, forged)
			}
			p := headers.Moved(sent, "orders", naming.Default)
			assert.Equal(t, []any{"", "", "", uint8(0)}, []any{p.UserId, p.ReplyTo, p.Expiration, p.Priority})
			assert.NotContains(t, p.Headers, "x-opt-delivery-time")
			assert.NotContains(t, p.Headers, "CC")
			assert.Equal(t, first, headers.Unmoved(partitioned(p), "orders"))
		})
	}
	assert.Empty(t, headers.Moved(direct, "orders", naming.Default).Headers)
}

// TestAPublisherToAPartitionIsNotTheMover: the app's own headers are no properties, as on the way through the work
// queue.
func TestAPublisherToAPartitionIsNotTheMover(t *testing.T) {
	p := amqp091.Publishing{Headers: maps.Clone(forged), UserId: "web", Expiration: "1", Priority: 5}
	p.Headers["own"] = "1"
	headers.Direct(&p)
	assert.Zero(t, p.Priority, "it would overtake")
	assert.Equal(t, amqp091.Delivery{
		RoutingKey: "orders", UserId: "web", Expiration: "1", Priority: 5, Headers: amqp091.Table{"own": "1"},
	}, headers.Unmoved(partitioned(p), "orders"))
}
