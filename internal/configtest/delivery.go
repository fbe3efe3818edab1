// Package configtest has deliveries, and the list of fields, that the tests of both majors of watermill-amqp use.
package configtest

import (
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Settled is the Acknowledger of a delivery from a broker.
type Settled struct{}

func (Settled) Ack(uint64, bool) error        { return nil }
func (Settled) Nack(uint64, bool, bool) error { return nil }
func (Settled) Reject(uint64, bool) error     { return nil }

// TypedHeaders have every type of AMQP except string.
var TypedHeaders = amqp091.Table{
	"nil": nil, "bool": true, "byte": byte(200), "int8": int8(-7), "int16": int16(-700), "uint16": uint16(60000),
	"int32": int32(-70000), "uint32": uint32(4000000000), "int64": int64(-1 << 60),
	"float32": float32(1.5), "float64": -2.25, "decimal": amqp091.Decimal{Scale: 2, Value: -12345},
	"time": time.Unix(1700000000, 0), "bytes": []byte{0, 255, 1}, "empty bytes": []byte{},
	"array": []any{"text \xff", int32(1), nil, []any{true}, amqp091.Table{"deep": int64(5)}},
	"table": amqp091.Table{"a": "b", "n": nil, "t": amqp091.Table{}},
}

// Foreign returns a delivery that another client has published, with every property of AMQP.
func Foreign() amqp091.Delivery {
	headers := amqp091.Table{"trace": "abc"}
	for key, value := range TypedHeaders {
		headers[key] = value
	}
	return amqp091.Delivery{
		Acknowledger: Settled{}, Headers: headers, Body: []byte("order 1"),
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp091.Transient, Priority: 5,
		CorrelationId: "c-1", ReplyTo: "replies", Expiration: "60000", MessageId: "m-1",
		Timestamp: time.Unix(1700000001, 0), Type: "order", UserId: "shop", AppId: "web",
		Exchange: "shop", RoutingKey: "orders.eu",
	}
}

// ComeBack returns the delivery of a copy that comes back from its tier.
func ComeBack(p amqp091.Publishing) amqp091.Delivery {
	headers := amqp091.Table{
		"x-death":              []any{amqp091.Table{"reason": "expired", "count": int64(1)}},
		"x-first-death-reason": "expired", "x-last-death-queue": "orders.retry.1s", "x-delivery-count": int64(2),
	}
	for key, value := range p.Headers {
		headers[key] = value
	}
	return amqp091.Delivery{
		Acknowledger: Settled{}, Headers: headers, Body: p.Body, ContentType: p.ContentType,
		ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority,
		CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId,
		Timestamp: p.Timestamp, Type: p.Type, UserId: p.UserId, AppId: p.AppId,
		Exchange: "retry.return", RoutingKey: "1s.orders",
	}
}
