package publisher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
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
	defaultReconnectInitial = 100 * time.Millisecond
	defaultReconnectMax     = 5 * time.Second
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

	uri, err := parseURI(c.URI)
	if err != nil {
		faults = append(faults, err)
	}
	tlsSet := c.TLS != nil
	if c.AMQP != nil {
		if c.AMQP.Recovery != nil {
			fault("AMQP.Recovery: is set, must be nil: the publisher reconnects by itself")
		}
		if tlsSet && c.AMQP.TLSClientConfig != nil {
			fault("TLS: is set, and so is AMQP.TLSClientConfig: only one of them may be set")
		}
		tlsSet = tlsSet || c.AMQP.TLSClientConfig != nil
	}
	if tlsSet && err == nil && uri.Scheme != "amqps" {
		fault("TLS: is set, but the URI's scheme is %q, must be \"amqps\": nothing would be encrypted", uri.Scheme)
	}
	if len(c.Exchange) > maxShortString {
		fault("Exchange: %q has %d bytes, at most %d", clip(c.Exchange), len(c.Exchange), maxShortString)
	}
	for _, duration := range []struct {
		field string
		value time.Duration
	}{
		{"RedeclareTimeout", c.RedeclareTimeout}, {"ConfirmTimeout", c.ConfirmTimeout}, {"WriteTimeout", c.WriteTimeout},
		{"ReconnectInitial", c.ReconnectInitial}, {"ReconnectMax", c.ReconnectMax},
	} {
		if duration.value < 0 {
			fault("%s: %s, must not be negative (0 for the default)", duration.field, duration.value)
		}
	}
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
	setDefault(&c.ReconnectInitial, defaultReconnectInitial)
	setDefault(&c.ReconnectMax, max(defaultReconnectMax, c.ReconnectInitial))
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

// amqpConfig returns a copy that amqp091-go may modify.
func (c *Config) amqpConfig() amqp091.Config {
	var config amqp091.Config
	if c.AMQP != nil {
		config = *c.AMQP
		config.SASL = append([]amqp091.Authentication(nil), c.AMQP.SASL...)
		if len(config.SASL) == 0 {
			config.SASL = nil
		}
	}
	if c.TLS != nil {
		config.TLSClientConfig = c.TLS
	}
	config.TLSClientConfig = config.TLSClientConfig.Clone()
	properties := amqp091.NewConnectionProperties()
	if len(config.Properties) > 0 {
		properties = maps.Clone(config.Properties)
	}
	if _, named := properties["connection_name"]; !named {
		properties.SetClientConnectionName("watermill-retry publisher, exchange " + c.Exchange)
	}
	config.Properties = properties
	return config
}

// parseURI returns errors without the address and without the parser's text: both can contain a part of the password.
func parseURI(address string) (amqp091.URI, error) {
	if address == "" {
		return amqp091.URI{}, errors.New("URI: is empty, must be amqp://user:password@host:port/vhost or amqps://...")
	}
	const hint = "reserved characters in user name and password have to be percent-encoded"
	parsed, err := url.Parse(address)
	if err != nil {
		return amqp091.URI{}, errors.New("URI: cannot be parsed (it is not shown, because it may contain a password); " + hint)
	}
	if parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return amqp091.URI{}, errors.New("URI: the scheme must be amqp or amqps")
	}
	// An unescaped / ? or # in the password ends the host part too early: a part of the password would be dialled and logged as
	// the host.
	if parsed.Fragment != "" || parsed.User == nil && strings.Contains(address, "@") || strings.Contains(tail(address), "@") {
		return amqp091.URI{}, errors.New("URI: user name and password cannot be separated from the host; " + hint)
	}
	uri, err := amqp091.ParseURI(address)
	if err != nil {
		return amqp091.URI{}, errors.New("URI: contains white space, or a port or parameter that is not a number within its bounds; " + hint)
	}
	return uri, nil
}

// tail returns the part of the address after the host. It begins too early when the password has an unescaped / ? or #.
func tail(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		return rest[end:]
	}
	return ""
}

// place describes the address without user and password.
func place(uri amqp091.URI) string {
	return fmt.Sprintf("%s (virtual host %q)", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost)
}

func marshal(msg *message.Message) (amqp091.Publishing, error) {
	headers := make(amqp091.Table, len(msg.Metadata)+2)
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	headers[UUIDHeader] = msg.UUID
	return amqp091.Publishing{Headers: headers, Body: msg.Payload, DeliveryMode: amqp091.Persistent}, nil
}
