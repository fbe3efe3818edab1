package headers

import (
	"maps"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
)

// Moved returns what is published to a partition of a delivery of its work queue. The app's marshaler takes no part: it
// reads the message when the partition delivers it. Headers of the library that any publisher can write are left out.
func Moved(d amqp091.Delivery, queue string, prefix naming.Prefix) amqp091.Publishing {
	record, waited := d.Headers[recordHeader]
	(&marshaler{prefix: prefix}).restore(&d)
	p := Publishing(&d)
	p.Headers = make(amqp091.Table, len(d.Headers)+moreHeaders)
	maps.Copy(p.Headers, d.Headers)
	if waited {
		p.Headers[recordHeader] = record
	}
	if d.Exchange != "" || d.RoutingKey != queue {
		SetOrigin(p.Headers, d.Exchange, d.RoutingKey)
	}
	unfit.Move(&p, unfit.Moved, "")
	return p
}

// Unmoved returns a delivery of a partition as the work queue has delivered it. A client that may publish to the
// exchange of the partitions is believed, as one that may publish copies.
func Unmoved(d amqp091.Delivery, queue string) amqp091.Delivery {
	was := d
	was.Headers = make(amqp091.Table, len(d.Headers))
	for key, value := range d.Headers {
		if !isOrigin(key) {
			was.Headers[key] = value
		}
	}
	unfit.Restore(&was, was.Headers, d.Headers, true)
	was.Exchange, was.RoutingKey = text(d.Headers, exchangeHeader), queue
	if key, moved := d.Headers[routingKeyHeader].(string); moved {
		was.RoutingKey = key
	}
	if len(was.Headers) == 0 {
		was.Headers = nil
	}
	return was
}

// Direct makes a message of the app one that its publisher sends to a partition itself. The app's own headers are not
// believed there.
func Direct(p *amqp091.Publishing) {
	maps.DeleteFunc(p.Headers, func(key string, _ any) bool { return isOrigin(key) })
	unfit.Move(p, unfit.Sent, "")
}

// isOrigin reports whether Unmoved reads a header.
func isOrigin(key string) bool {
	return key == exchangeHeader || key == routingKeyHeader || unfit.IsKept(key)
}

// Publishing returns the properties and the body of a delivery.
func Publishing(d *amqp091.Delivery) amqp091.Publishing {
	return amqp091.Publishing{
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority:      d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
		Timestamp: d.Timestamp,
		Type:      d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}
}
