package publisher

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
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
	defaultConfirmTimeout = 30 * time.Second
	defaultWriteTimeout   = 10 * time.Second
	defaultDeclareTimeout = 10 * time.Second
	defaultMaxInFlight    = 1024
	mostInFlight          = 1 << 16

	maxShortString = 255 // the length of an AMQP short string has one byte
)

// ConnectionConfig is the configuration of a Connection. URI is required; every other field has a default.
type ConnectionConfig struct {
	// URI is the broker's address: amqp:// or amqps://. Reserved characters in the user name and password have to be
	// percent-encoded, and also '@' in the virtual host and in parameters. Errors and log lines contain its host, port and
	// virtual host, and never the rest.
	URI string

	// AMQP is the configuration of amqp091-go; nil means its defaults. It is copied and never modified. Its Recovery has to
	// be nil, because the Connection reconnects by itself. Its Properties get a connection_name unless they have one. Its Dial
	// is used if it is set, and the Connection wraps the connections that it returns.
	AMQP *amqp091.Config

	// TLS is the TLS configuration for amqps:// addresses, like the TLSConfig of watermill-amqp's ConnectionConfig. Only one
	// of TLS and AMQP.TLSClientConfig may be set. It is copied.
	TLS *tls.Config

	// ConfirmTimeout is the longest duration of a call of Publish, until all its messages are confirmed. The end of a message's
	// context can end the wait for that message earlier. Default 30 s.
	ConfirmTimeout time.Duration

	// WriteTimeout is the longest duration of one write to the socket. When it is over, the connection is closed. Default 10 s.
	WriteTimeout time.Duration

	// MaxInFlight is how many messages of all Publishers may be written and not yet confirmed. Further publishes wait. A message
	// is abandoned, and still counts, when its caller has returned without a confirm. When more than half of MaxInFlight are
	// abandoned, as happens when a queue never confirms, the channel is given up. The abandoned messages then do not count any
	// more, and the other messages in flight are published again on a new channel. Default 1024, at most 65536.
	MaxInFlight int

	// ReconnectInitial and ReconnectMax are the bounds of the pause before each attempt to reconnect. It starts at
	// ReconnectInitial, doubles after each attempt up to ReconnectMax, and is shortened at random by up to a half. Defaults
	// 100 ms and 5 s.
	ReconnectInitial, ReconnectMax time.Duration
}

// Validate returns all faults at once, each with its field, value and bound. It does not connect.
func (c ConnectionConfig) Validate() error {
	faults := c.dial().Faults()
	faults = append(faults, wire.Durations([]wire.Field{
		{Name: "ConfirmTimeout", Value: c.ConfirmTimeout}, {Name: "WriteTimeout", Value: c.WriteTimeout},
		{Name: "ReconnectInitial", Value: c.ReconnectInitial}, {Name: "ReconnectMax", Value: c.ReconnectMax},
	})...)
	if c.MaxInFlight < 0 || c.MaxInFlight > mostInFlight {
		faults = append(faults, fmt.Errorf("MaxInFlight: %d, must be between 1 and %d (0 for the default)", c.MaxInFlight, mostInFlight))
	}
	c.setDefaults()
	if c.ReconnectInitial > 0 && c.ReconnectMax > 0 && c.ReconnectInitial > c.ReconnectMax {
		faults = append(faults, fmt.Errorf("ReconnectInitial: %s, at most ReconnectMax, %s", c.ReconnectInitial, c.ReconnectMax))
	}
	return join("publisher connection config", faults)
}

func (c *ConnectionConfig) setDefaults() {
	c.ConfirmTimeout = cmp.Or(c.ConfirmTimeout, defaultConfirmTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, defaultWriteTimeout)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultMaxInFlight)
	longest := cmp.Or(c.ReconnectMax, max(wire.ReconnectMax, c.ReconnectInitial))
	c.ReconnectInitial = cmp.Or(c.ReconnectInitial, min(wire.ReconnectInitial, longest))
	c.ReconnectMax = longest
}

func (c *ConnectionConfig) dial() wire.Config {
	return wire.Config{URI: c.URI, AMQP: c.AMQP, TLS: c.TLS}
}

const connectionName = "watermill-retry publisher"

// Config is the configuration of a Publisher. Every field has a default. The functions are called by several goroutines at the
// same time.
type Config struct {
	// Exchange is the exchange that all messages are published to. The topic of Publish is the routing key. At most 255 bytes.
	// Empty means the default exchange, which routes to the queue whose name is the topic. Only one of Exchange and Route may be
	// set.
	Exchange string

	// Route returns the exchange and the routing key of a topic, each of at most 255 bytes. An empty exchange is the default
	// exchange. Route is called once by each Publish, in its goroutine. With an error, no message is sent. Nil: Exchange and
	// the topic.
	Route func(topic string) (exchange, routingKey string, err error)

	// Marshal converts a message to a publishing. The publisher may modify the Headers that it returns: it adds IDHeader. A
	// DeliveryMode of 0 becomes persistent. Marshal is called in the goroutine of Publish. Nil: the payload becomes the body,
	// the metadata become headers, and the UUID is stored in UUIDHeader.
	Marshal func(*message.Message) (amqp091.Publishing, error)

	// DeclareExchange declares an exchange. Queues and bindings belong in Redeclare: a message that is published between the
	// exchange's declaration and that of its binding is returned. DeclareExchange is called before the first publish to the exchange, before
	// the first one after each reconnect, and when the broker closed the channel because the exchange does not exist; then the
	// message is published once more. It is not called for the default exchange, which always exists.
	//
	// DeclareExchange may use the channel until it returns: the channel is opened for this call only. Calls for the same exchange
	// never overlap: publishes that need one wait for its result. A panic counts as an error. After an error, the next publish
	// calls it again. Nil: the exchanges have to exist.
	DeclareExchange func(channel *amqp091.Channel, exchange string) error

	// Redeclare is called when the broker returned a message as unroutable, or, without DeclareExchange, when the exchange does
	// not exist; then the message is published once more. Redeclare may use the channel until it returns: the channel is opened
	// for this call only. Calls for the same exchange and routing key never overlap: publishes that fail during a call wait for
	// its result. A panic counts as an error. Nil: no redeclaration.
	Redeclare func(channel *amqp091.Channel, exchange, routingKey string) error

	// DeclareTimeout is how long a publish waits for DeclareExchange, and how long for Redeclare. ConfirmTimeout bounds both.
	// Default 10 s.
	DeclareTimeout time.Duration

	// Headroom returns how many bytes the broker may add to the headers of a message with this routing key before a consumer
	// reads it, as it does when it dead-letters. A message that does not leave that much room in a frame is refused: with the
	// broker's headers it would close the connection of its consumer. Nil: 0 bytes.
	Headroom func(routingKey string) int

	// Spare returns how many bytes more to leave for the broker's headers if Shrink can free them, such as for its counts of
	// deliveries (26 bytes each) in a queue whose messages are read more than once. A message that is too large only because of them
	// is not refused, while one is that leaves no room for the two headers. Nil: 0 bytes.
	Spare func(routingKey string) int

	// Shrink is called when properties, headers, headroom and spare room together are larger than one frame of the connection, by
	// excess bytes, or when there are too many headers; excess is then math.MaxInt. It may remove headers or shorten values. A message
	// that is still too large is refused, and errors.As finds a cause with the method TooLarge() bool. Nil: nothing is removed.
	Shrink func(p *amqp091.Publishing, excess int)
}

// Validate returns all faults at once, each with its field, value and bound.
func (c Config) Validate() error {
	var faults []error
	if len(c.Exchange) > maxShortString {
		faults = append(faults, fmt.Errorf("Exchange: %q has %d bytes, at most %d", clip(c.Exchange), len(c.Exchange), maxShortString))
	}
	if c.Exchange != "" && c.Route != nil {
		faults = append(faults, fmt.Errorf("Route: is set, and so is Exchange, %q: only one of them may be set", clip(c.Exchange)))
	}
	faults = append(faults, wire.Durations([]wire.Field{{Name: "DeclareTimeout", Value: c.DeclareTimeout}})...)
	return join("publisher config", faults)
}

func (c *Config) setDefaults() {
	c.DeclareTimeout = cmp.Or(c.DeclareTimeout, defaultDeclareTimeout)
	if c.Marshal == nil {
		c.Marshal = marshal
	}
}

func join(subject string, faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", subject, errors.Join(faults...))
}

func marshal(msg *message.Message) (amqp091.Publishing, error) {
	headers := make(amqp091.Table, len(msg.Metadata)+2)
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	headers[UUIDHeader] = msg.UUID
	return amqp091.Publishing{Headers: headers, Body: msg.Payload, DeliveryMode: amqp091.Persistent}, nil
}
