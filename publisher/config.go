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
	// IDHeader is the message header in which the publisher marks each publish, to match the broker's returns with it.
	// Its value is a short string that means nothing to anybody else: a consumer may strip it.
	IDHeader = "retry_publish_id"

	// UUIDHeader is where the default Config.Marshal puts the message's UUID; it is watermill-amqp's own.
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

// Config describes a Publisher. URI is required; every other field has a default.
type Config struct {
	// URI is the broker's address: amqp:// or amqps://. Reserved characters in the user name or password have to be
	// percent-encoded, and so has '@' in the virtual host and in parameters. It is never part of an error or a log line;
	// host, port and virtual host are.
	URI string

	// AMQP is amqp091-go's own configuration; nil for its defaults. It is copied and never modified. Its Recovery has
	// to be nil, because the publisher reconnects by itself; its Properties get a connection_name unless they have one.
	// A Dial of the application's own is used, and what it returns is wrapped.
	AMQP *amqp091.Config

	// TLS is used for amqps:// addresses, like the TLSConfig of watermill-amqp's ConnectionConfig. It excludes
	// AMQP.TLSClientConfig. It is copied.
	TLS *tls.Config

	// Exchange is where everything is published; the topic of Publish is the routing key. At most 255 bytes; empty
	// means the default exchange, which routes to the queue named like the topic.
	Exchange string

	// Marshal makes the publishing. Its Headers may be modified afterwards: IDHeader is added. A DeliveryMode of 0
	// becomes persistent. It is called from the goroutine of Publish, and has to be safe for concurrent use.
	// Nil: the payload is the body, metadata are headers, the UUID is in UUIDHeader.
	Marshal func(*message.Message) (amqp091.Publishing, error)

	// Redeclare, where set, is called when a message came back as unroutable, before the message is published once
	// more. It may use the channel, which is a throwaway of its own, until it returns. Calls for one routing key never
	// overlap: publishes that fail meanwhile share the result of the call under way. A panic counts as an error.
	Redeclare func(ch *amqp091.Channel, routingKey string) error

	// RedeclareTimeout bounds how long a publish waits for Redeclare. Default 10 s.
	RedeclareTimeout time.Duration

	// Headroom, where set, is how many bytes the broker itself may add to the headers of a message with this routing key before
	// a consumer reads it, as it does when it dead-letters. Messages that do not leave as much of a frame are refused: with
	// the broker's headers they would close the connection of whoever consumes them. Nil: none.
	Headroom func(routingKey string) int

	// Shrink, where set, is called when the message's properties and headers, and the headroom, are larger than one frame of
	// this connection may be, by excess bytes. It may drop headers or shorten values. What is still too large afterwards is
	// refused, and errors.As finds a cause with the method TooLarge() bool.
	Shrink func(p *amqp091.Publishing, excess int)

	// ConfirmTimeout is how long one call of Publish may take, from the call to the confirm. A message's context may
	// end it earlier. Default 30 s.
	ConfirmTimeout time.Duration

	// WriteTimeout is how long one write to the socket may take: a peer that reads nothing for longer loses the
	// connection. Default 10 s.
	WriteTimeout time.Duration

	// MaxInFlight is how many messages may be written and not yet confirmed; further publishes wait. A message whose
	// caller has left without a confirm counts on. When more than half of MaxInFlight are such, because a queue never
	// confirms, the publisher gives up the channel: they count no longer, and other messages in flight are published
	// again on a new one. Default 1024, at most 65536.
	MaxInFlight int

	// ReconnectInitial and ReconnectMax bound the pause before each attempt to reconnect: it starts at the first,
	// doubles up to the second, and is shortened at random by up to a half. Defaults 100 ms and 5 s.
	ReconnectInitial, ReconnectMax time.Duration
}

// Validate reports all faults at once, each with its field, value and bound. It connects nowhere.
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
			fault("TLS: is set, and so is AMQP.TLSClientConfig: only one of them may be")
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

// amqpConfig is a copy that amqp091-go may write into.
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

// parseURI never quotes the address, nor the parser's words about it: both can hold the password, or a part of it.
func parseURI(address string) (amqp091.URI, error) {
	if address == "" {
		return amqp091.URI{}, errors.New("URI: is empty, must be amqp://user:password@host:port/vhost or amqps://...")
	}
	const hint = "reserved characters in user name and password have to be percent-encoded"
	parsed, err := url.Parse(address)
	if err != nil {
		return amqp091.URI{}, errors.New("URI: cannot be parsed (not shown, it may hold a password); " + hint)
	}
	if parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return amqp091.URI{}, errors.New("URI: the scheme must be amqp or amqps")
	}
	// An unescaped / ? or # in the password ends the address early: what is left would be dialled, and logged, as the host.
	if parsed.Fragment != "" || parsed.User == nil && strings.Contains(address, "@") || strings.Contains(tail(address), "@") {
		return amqp091.URI{}, errors.New("URI: user name and password cannot be told from the host; " + hint)
	}
	uri, err := amqp091.ParseURI(address)
	if err != nil {
		return amqp091.URI{}, errors.New("URI: white space, or a port or parameter that is no number in its bounds; " + hint)
	}
	return uri, nil
}

// tail is what follows the host, as it was written: with the first unescaped / ? or # of a password, it begins too early.
func tail(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		return rest[end:]
	}
	return ""
}

// place says where a connection goes, without user and password.
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
