package publisher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

const (
	// IDHeader is the message header in which the publisher stores an id, to match the broker's returns with messages. Its
	// value is a short string. Consumers do not need it and may remove it.
	IDHeader = "retry_publish_id"

	// UUIDHeader is the message header in which the default Config.Marshal stores the message's UUID. Its name is that of
	// watermill-amqp's DefaultMarshaler.
	UUIDHeader = "_watermill_message_uuid"
)

const (
	defaultConfirmTimeout   = 30 * time.Second
	defaultWriteTimeout     = 10 * time.Second
	defaultRedeclareTimeout = 10 * time.Second
	defaultMaxInFlight      = 1024
	mostInFlight            = 1 << 16

	maxShortString = 255 // the length of an AMQP short string has one byte
)

// Config is the configuration of a Publisher. URI is required; every other field has a default.
type Config struct {
	// URI is the broker's address: amqp:// or amqps://. Reserved characters in the user name and password have to be
	// percent-encoded, and also '@' in the virtual host and in parameters. Errors and log lines contain its host, port and
	// virtual host, and never the rest.
	URI string

	// AMQP is the configuration of amqp091-go; nil means its defaults. It is copied and never modified. Its Recovery has to
	// be nil, because the publisher reconnects by itself. Its Properties get a connection_name unless they have one. Its Dial
	// is used if it is set, and the publisher wraps the connections that it returns.
	AMQP *amqp091.Config

	// TLS is the TLS configuration for amqps:// addresses, like the TLSConfig of watermill-amqp's ConnectionConfig. Only one
	// of TLS and AMQP.TLSClientConfig may be set. It is copied.
	TLS *tls.Config

	// Exchange is the exchange that all messages are published to. The topic of Publish is the routing key. At most 255 bytes.
	// Empty means the default exchange, which routes to the queue whose name is the topic.
	Exchange string

	// Marshal converts a message to a publishing. The publisher may modify the Headers that it returns: it adds IDHeader. A
	// DeliveryMode of 0 becomes persistent. Marshal is called in the goroutine of Publish and has to be safe for concurrent
	// use. Nil: the payload becomes the body, the metadata become headers, and the UUID is stored in UUIDHeader.
	Marshal func(*message.Message) (amqp091.Publishing, error)

	// Redeclare is called when the broker returned a message as unroutable; then the message is published once more. Redeclare
	// may use the channel until it returns: the channel is opened for this call only. Calls for the same routing key never
	// overlap: publishes that fail during a call wait for its result. A panic counts as an error. Nil: no redeclaration.
	Redeclare func(ch *amqp091.Channel, routingKey string) error

	// RedeclareTimeout is how long a publish waits for Redeclare. Default 10 s.
	RedeclareTimeout time.Duration

	// Headroom returns how many bytes the broker may add to the headers of a message with this routing key before a consumer
	// reads it, as it does when it dead-letters. A message that does not leave that much room in a frame is refused: with the
	// broker's headers it would close the connection of its consumer. Nil: 0 bytes.
	Headroom func(routingKey string) int

	// Shrink is called when properties, headers and headroom together are larger than one frame of the connection, by excess
	// bytes, or when there are too many headers; excess is then math.MaxInt. It may remove headers or shorten values. A message
	// that is still too large is refused, and errors.As finds a cause with the method TooLarge() bool. Nil: nothing is removed.
	Shrink func(p *amqp091.Publishing, excess int)

	// ConfirmTimeout is the longest duration of a call of Publish, until all its messages are confirmed. The end of a message's
	// context can end the wait for that message earlier. Default 30 s.
	ConfirmTimeout time.Duration

	// WriteTimeout is the longest duration of one write to the socket. When it is over, the connection is closed. Default 10 s.
	WriteTimeout time.Duration

	// MaxInFlight is how many messages may be written and not yet confirmed. Further publishes wait. A message is abandoned, and
	// still counts, when its caller has returned without a confirm. When more than half of MaxInFlight are abandoned, as happens
	// when a queue never confirms, the publisher gives up the channel. The abandoned messages then do not count any more, and
	// the other messages in flight are published again on a new channel. Default 1024, at most 65536.
	MaxInFlight int

	// ReconnectInitial and ReconnectMax are the bounds of the pause before each attempt to reconnect. It starts at
	// ReconnectInitial, doubles after each attempt up to ReconnectMax, and is shortened at random by up to a half. Defaults
	// 100 ms and 5 s.
	ReconnectInitial, ReconnectMax time.Duration
}

// Validate returns all faults at once, each with its field, value and bound. It does not connect.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	faults = append(faults, c.dial().Faults()...)
	if len(c.Exchange) > maxShortString {
		fault("Exchange: %q has %d bytes, at most %d", clip(c.Exchange), len(c.Exchange), maxShortString)
	}
	faults = append(faults, dial.Durations([]dial.Field{
		{Name: "RedeclareTimeout", Value: c.RedeclareTimeout}, {Name: "ConfirmTimeout", Value: c.ConfirmTimeout},
		{Name: "WriteTimeout", Value: c.WriteTimeout}, {Name: "ReconnectInitial", Value: c.ReconnectInitial},
		{Name: "ReconnectMax", Value: c.ReconnectMax},
	})...)
	if c.MaxInFlight < 0 || c.MaxInFlight > mostInFlight {
		fault("MaxInFlight: %d, must be between 1 and %d (0 for the default)", c.MaxInFlight, mostInFlight)
	}
	c.setDefaults()
	if c.ReconnectInitial > 0 && c.ReconnectMax > 0 && c.ReconnectInitial > c.ReconnectMax {
		fault("ReconnectInitial: %s, at most ReconnectMax, %s", c.ReconnectInitial, c.ReconnectMax)
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("publisher config: %w", errors.Join(faults...))
}

func (c *Config) setDefaults() {
	setDefault(&c.RedeclareTimeout, defaultRedeclareTimeout)
	setDefault(&c.ConfirmTimeout, defaultConfirmTimeout)
	setDefault(&c.WriteTimeout, defaultWriteTimeout)
	setDefault(&c.ReconnectInitial, dial.ReconnectInitial)
	setDefault(&c.ReconnectMax, max(dial.ReconnectMax, c.ReconnectInitial))
	setDefault(&c.MaxInFlight, defaultMaxInFlight)
	if c.Marshal == nil {
		c.Marshal = marshal
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) dial() dial.Config { return dial.Config{URI: c.URI, AMQP: c.AMQP, TLS: c.TLS} }

func (c *Config) connectionName() string { return "watermill-retry publisher, exchange " + c.Exchange }

func marshal(msg *message.Message) (amqp091.Publishing, error) {
	headers := make(amqp091.Table, len(msg.Metadata)+2)
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	headers[UUIDHeader] = msg.UUID
	return amqp091.Publishing{Headers: headers, Body: msg.Payload, DeliveryMode: amqp091.Persistent}, nil
}
