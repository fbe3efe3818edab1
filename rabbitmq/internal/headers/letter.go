package headers

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// UserIDHeader has the user-id of a message that is published again: RabbitMQ accepts only the connection's own user as the property.
const UserIDHeader = userIDHeader

// IsApp reports whether a header is the app's: neither one of the library, with the failure record and the history of redrives, nor one
// that the broker sets or acts on.
func IsApp(key string) bool { return !recordKeys[key] && !isTransport(key) && !isBroker(key) }

// IsKept reports whether a copy that is not retried keeps a header. The broker's record of why it dead-lettered the message stays, unless
// the message came back from a tier.
func IsKept(key string, back bool) bool {
	return !isBroker(key) || !back && isDeath(key)
}

// RecordOf returns the headers of the failure record and of the history of redrives, as metadata. A folded record has the precedence, as
// in Unmarshal.
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

// Transport is what a copy has in headers of the library. An empty field has no header.
type Transport struct {
	UserID, Exchange, RoutingKey string
	Priority                     uint8
}

// TransportOf reads it, whatever the exchange that the delivery came through: use it only where a forged value does no harm.
func TransportOf(headers amqp091.Table) Transport {
	priority, _ := headers[priorityHeader].(byte)
	return Transport{text(headers, userIDHeader), text(headers, exchangeHeader), text(headers, routingKeyHeader), priority}
}

// SetOrigin writes the exchange that a message was first published to, and its routing key, into the headers of a redrive. The exchange is
// not the default one.
func SetOrigin(headers amqp091.Table, exchange, routingKey string) {
	headers[exchangeHeader], headers[routingKeyHeader] = exchange, routingKey
}

// AppendValue appends the encoding of a header's value. Equal values have equal encodings.
func AppendValue(b []byte, value any) []byte { return appendValue(b, value) }

// RawReason returns why the app's marshaler could not marshal a dead letter, or "". See rawHeader.
func RawReason(headers amqp091.Table) string { return text(headers, rawHeader) }
