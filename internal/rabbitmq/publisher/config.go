package publisher

import (
	"cmp"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const (
	// IDHeader is the message header in which Send stores an id, to match the broker's returns with messages. Its value
	// is a short string. Consumers do not need it and may remove it.
	IDHeader = "retry_publish_id"

	// UUIDHeader is the message header in which watermill-amqp's DefaultMarshaler stores the message's UUID.
	UUIDHeader = "_watermill_message_uuid"
)

const (
	defaultConfirmTimeout = 30 * time.Second
	defaultMaxInFlight    = 1024

	maxShortString = 255 // the length of an AMQP short string has one byte
)

// Config is the configuration of a Connection. Wire.URI is required; every other field has a default.
type Config struct {
	Wire wire.Config

	// ConfirmTimeout is the longest duration of a call of Send, until all its messages are confirmed. The end of a
	// message's context can end the wait for that message earlier. Default 30 s.
	ConfirmTimeout time.Duration

	// MaxInFlight is how many messages may be written and not yet confirmed. Further messages wait. A message is
	// abandoned, and still counts, when its caller has returned without a confirm. When more than half of MaxInFlight
	// are abandoned, as happens when a queue never confirms, the channel is given up. The abandoned messages then do
	// not count any more, and the other messages in flight are published again on a new channel. Default 1024.
	MaxInFlight int
}

func (c *Config) setDefaults() {
	c.ConfirmTimeout = cmp.Or(c.ConfirmTimeout, defaultConfirmTimeout)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultMaxInFlight)
}
