package headers

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
)

// IsApp reports whether a header is the app's: neither one of the library, with the failure record and the history of
// redrives, nor one that the broker sets or acts on.
func IsApp(key string) bool { return !recordKeys[key] && !isTransport(key) && !isBroker(key) }

// RecordOf returns the headers of the failure record and of the history of redrives, as metadata. A folded record has
// the precedence, as in Unmarshal.
func RecordOf(headers amqp091.Table) message.Metadata {
	metadata := message.Metadata{}
	for key, value := range headers {
		if text, ok := value.(string); ok && recordKeys[key] {
			metadata[key] = text
		}
	}
	if r, ok := unfold(text(headers, recordHeader)); ok {
		r.writeInto(metadata)
	}
	return metadata
}

// Original returns a delivery as its message was first published, with the headers of the app only, and an empty
// exchange where that is not known. trusted: the library published the delivery. Without it, what the broker has
// vouched for is not read from headers, because any publisher can write them.
func Original(d *amqp091.Delivery, trusted bool) amqp091.Delivery {
	was := *d
	was.Headers = make(amqp091.Table, len(d.Headers))
	for key, value := range d.Headers {
		if IsApp(key) {
			was.Headers[key] = value
		}
	}
	unfit.Restore(&was, was.Headers, d.Headers, trusted)
	was.Exchange, was.RoutingKey = text(d.Headers, exchangeHeader), text(d.Headers, routingKeyHeader)
	return was
}

// SetOrigin writes the exchange that a message was first published to, and its routing key, into the headers of a
// redrive. The exchange is not the default one.
func SetOrigin(headers amqp091.Table, exchange, routingKey string) {
	headers[exchangeHeader], headers[routingKeyHeader] = exchange, routingKey
}

// RawReason returns why the app's marshaler could not marshal a dead letter, or "". See rawHeader.
func RawReason(headers amqp091.Table) string { return text(headers, rawHeader) }
