package headers

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
)

// RoundTrip encodes headers as Unmarshal does, and decodes them as Marshal does.
func RoundTrip(headers amqp091.Table) (amqp091.Table, error) {
	p, err := decodeProperties(properties{Headers: headers}.encode())
	return p.Headers, err
}

// Decode reads an encoding of properties.
func Decode(encoded string) error {
	_, err := decodeProperties(encoded)
	return err
}

// Consumers is how many consumers a marshaler of NewConsuming has.
func Consumers(m edge.Marshaler) (n int) {
	m.(consumingMarshaler).consumers.Range(func(any, any) bool { n++; return true })
	return n
}
