package headers

import (
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Decode reads an encoding of properties.
func Decode(encoded string) error {
	_, err := decodeProperties(encoded)
	return err
}

// Fold returns the headers of a message that waits, for those of its record.
func Fold(headers amqp091.Table) amqp091.Table {
	headers = maps.Clone(headers)
	var r record
	for i, f := range fields {
		if text, ok := headers[f.key].(string); ok {
			r[i] = text
			delete(headers, f.key)
		}
	}
	headers[recordHeader] = r.fold()
	return headers
}

// Unfold returns the headers with those of the record.
func Unfold(headers amqp091.Table) amqp091.Table {
	headers = maps.Clone(headers)
	if r, ok := unfold(text(headers, recordHeader)); ok {
		for key, value := range r.write(message.Metadata{}) {
			headers[key] = value
		}
	}
	delete(headers, recordHeader)
	return headers
}
