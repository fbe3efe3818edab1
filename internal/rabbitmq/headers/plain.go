package headers

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// plainKey returns the header of the UUID if the app's marshaler is an app.Plain, and if the header has no other
// meaning.
func plainKey(own app.Marshaler) string {
	plain, ok := own.(app.Plain)
	if !ok || isTransport(plain.UUIDKey) || isBroker(plain.UUIDKey) || recordKeys[plain.UUIDKey] {
		return ""
	}
	return plain.UUIDKey
}

// readPlain is Unmarshal for an app.Plain: it makes the metadata in one pass over the headers of the broker, without
// the copies that a marshaler of the app needs. It returns nil where that is not possible: a header of the app is not a
// string, or is a key of the record, which is folded too, or was moved to another header.
func (m *marshaler) readPlain(delivery *amqp091.Delivery) *message.Message {
	headers, folded := delivery.Headers, text(delivery.Headers, recordHeader)
	ours := m.published(delivery.Exchange, delivery.RoutingKey)
	size := len(headers)
	if folded != "" {
		size = len(fields)
	}
	uuid, metadata, kept := "", make(message.Metadata, size), 0
	for key, value := range headers {
		if isTransport(key) || ours && isBroker(key) {
			if unfit.KeepsHeader(key) {
				return nil
			}
			continue
		}
		text, ok := value.(string)
		if !ok || folded != "" && fieldOf(key) >= 0 {
			return nil
		}
		kept++
		if key == m.uuidKey {
			uuid = text
		} else {
			metadata[key] = text
		}
	}
	if r, ok := unfold(folded); ok {
		r.writeInto(metadata)
	}
	if kept < len(headers) {
		m.restoreProperties(delivery, nil, ours) // no header of the app is moved
	}
	delivery.Headers = nil // all are in the message
	msg := message.NewMessage(uuid, delivery.Body)
	msg.Metadata = metadata
	s := borrow(nil)
	defer s.giveBack()
	if encoded := m.encodeProperties(delivery, msg, false, s); encoded != "" {
		metadata[recordkey.Properties] = encoded
	}
	return msg
}

// writePlain returns what an app.Plain makes of the message, without the headers that a copy must not have.
func (m *marshaler) writePlain(msg *message.Message, rest func(key, value string) bool) amqp091.Publishing {
	headers := make(amqp091.Table, moreHeaders)
	for key, value := range msg.Metadata {
		if rest(key, value) && !isTransport(key) && !isBroker(key) {
			headers[key] = value
		}
	}
	if _, set := msg.Metadata[m.uuidKey]; set || msg.UUID != "" {
		headers[m.uuidKey] = msg.UUID
	}
	return amqp091.Publishing{Body: msg.Payload, Headers: headers}
}
