package subscriber

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// UUIDHeader is the message header in which the default Config.Unmarshal expects the message's UUID. It is the header
// of package publisher, and of watermill-amqp's DefaultMarshaler.
const UUIDHeader = "_watermill_message_uuid"

const (
	defaultConcurrency  = 16
	defaultCloseTimeout = 30 * time.Second // as message.RouterConfig.CloseTimeout
	defaultNackInitial  = 10 * time.Millisecond
	defaultNackMax      = 5 * time.Second

	maxPrefetch    = 1<<16 - 1 // basic.qos sends it in two bytes
	maxShortString = 255       // the length of an AMQP short string has one byte
)

// Config is the configuration of a Subscriber. Every field has a default. The functions are called by several
// goroutines at the same time. A panic in one of them counts as an error.
type Config struct {
	// Name is the subscriber's name in Health, for example that of its handler. It may be empty.
	Name string

	// QueueOf returns the name of the queue that a topic's messages are consumed from. Nil: the topic itself.
	QueueOf func(topic string) string

	// Declare declares what consuming a topic needs, such as its queue. It is called before the topic is consumed for
	// the first time, and again before it is consumed again: after each reconnect, and after the broker has cancelled
	// the consumer. It may remember what it has declared on a connection; see Declaration. The first Subscribe returns
	// its error. Later errors are logged, and Declare is called again after a pause; see Open. Nil: the queue has to
	// exist.
	Declare func(declaration Declaration, topic string) error

	// Quorum reports whether a queue is a quorum queue. It is called after Declare, and only on RabbitMQ 3.10 and 3.11:
	// there a quorum queue that is deleted and declared anew within milliseconds may move its consumers to the new
	// queue, where they get no message. A prefetch for the whole channel (global) makes the broker cancel them. It
	// limits nothing, and costs the broker processor time, on a classic queue more. Nil: every queue may be one.
	Quorum func(queue string) bool

	// Unmarshal converts a delivery to a message. When it returns an error, the error is logged and the delivery is
	// nacked after the pause of NackInitial. Nil: the body becomes the payload, headers that are strings become
	// metadata, and the UUID is taken from UUIDHeader.
	Unmarshal func(delivery amqp091.Delivery) (*message.Message, error)

	// Context returns the context of a message. It may add values to ctx, which has those of Subscribe's context. A
	// message's context ends when the message is acked or nacked, or after CloseTimeout; it does not end with
	// Subscribe's context. Nil: ctx itself.
	Context func(ctx context.Context, delivery amqp091.Delivery, topic string) context.Context

	// Concurrency is how many messages each Subscribe call has in flight: handed out, and neither acked nor nacked. It
	// stays the bound while the connection is lost, because handlers go on meanwhile. With 1, messages are handed out
	// one after the other in the order of the queue. Default 16, at most 65535.
	Concurrency int

	// Prefetch is how many messages the broker sends ahead of their acks. More than Concurrency makes fast handlers
	// faster, and lets messages of other keys overtake when many wait for one key of OrderKey. All that were not handed
	// out go back to the queue at a shutdown, and, on RabbitMQ before 4.3, count towards a quorum queue's delivery
	// limit. Default Concurrency; at least Concurrency, at most 65535.
	Prefetch int

	// OrderKey returns a message's key. Messages with the same key are handed out one after the other, in the order of
	// the queue: the next one when the previous one has been acked or nacked. Messages of other keys are handed out
	// meanwhile. A message that waits for its key takes a place of Prefetch and none of Concurrency. Messages with an
	// empty key have no order. With an OrderKey, one goroutine for each Subscribe call unmarshals its messages. Nil: no
	// order.
	OrderKey func(msg *message.Message) string

	// Limits is called by each Subscribe call before it consumes, with a function that limits how many messages that
	// call has in flight, and one that counts the messages that were delivered since the last pause and are not
	// settled. It may call limit at once, to begin with a limit. It returns a function that is called when the
	// subscription has ended, or nil. See "Limits" in the documentation of the package. Nil: only Concurrency limits
	// them.
	Limits func(limit func(n int), taken func() int) (ended func())

	// Consumer has options of basic.consume.
	Consumer ConsumerConfig

	// CloseTimeout is how long messages in flight may go on after Close, or after the end of Subscribe's context. Then
	// their contexts end, and one second later they are given up: the broker delivers them again. Default 30 s, which
	// is the default of Watermill's router.
	CloseTimeout time.Duration

	// NackInitial and NackMax are the bounds of the pause between a nack and the requeueing of the message. It starts
	// at NackInitial and doubles with each delivery of the message up to NackMax. Deliveries are counted by the broker
	// (x-delivery-count, x-acquired-count: quorum queues), or else by each Subscribe call, for the last 1024 messages
	// that it nacked. The message keeps its place of Concurrency meanwhile. Defaults 10 ms and 5 s.
	NackInitial, NackMax time.Duration

	// Nacked is called when a message was nacked, before the pause. The message may have been changed by its handler:
	// again returns it as it was delivered. If Nacked returns true, the message is acked, because Nacked has taken care
	// of it. It may block: the message takes one place of Concurrency meanwhile. Nil: nothing is called.
	Nacked func(msg *message.Message, again func() (*message.Message, error)) bool
}

// ConsumerConfig has the options of basic.consume.
type ConsumerConfig struct {
	// Tag is the consumer's name on its channel. Each Subscribe call has a channel of its own. At most 255 bytes. A
	// consumer that begins after a change of the limit has a number at its end. Empty: a unique one.
	Tag string

	// Exclusive asks the broker to refuse other consumers of the queue.
	Exclusive bool

	// NoLocal is sent to the broker. RabbitMQ ignores it.
	NoLocal bool

	// Arguments are the consumer's, such as x-priority. They are not modified.
	Arguments amqp091.Table
}

// Validate returns all faults at once, each with its field, value and bound.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Concurrency < 0 || c.Concurrency > maxPrefetch {
		fault("Concurrency: %d, must be between 1 and %d (0 for the default)", c.Concurrency, maxPrefetch)
	}
	if least := cmp.Or(c.Concurrency, defaultConcurrency); c.Prefetch != 0 &&
		(c.Prefetch < least || c.Prefetch > maxPrefetch) {
		fault("Prefetch: %d, must be between Concurrency, %d, and %d (0 for the default)", c.Prefetch, least,
			maxPrefetch)
	}
	if n := len(c.Consumer.Tag); n > maxShortString {
		fault("Consumer.Tag: has %d bytes, at most %d", n, maxShortString)
	}
	if err := c.Consumer.Arguments.Validate(); err != nil {
		fault("Consumer.Arguments: %w", err)
	}
	faults = append(faults, wire.Durations([]wire.Field{
		{Name: "CloseTimeout", Value: c.CloseTimeout}, {Name: "NackInitial", Value: c.NackInitial}, {Name: "NackMax",
			Value: c.NackMax},
	})...)
	c.setDefaults()
	if c.NackInitial > 0 && c.NackMax > 0 && c.NackInitial > c.NackMax {
		fault("NackInitial: %s, at most NackMax, %s", c.NackInitial, c.NackMax)
	}
	return join("subscriber config", faults)
}

func (c *Config) setDefaults() {
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.Prefetch = cmp.Or(c.Prefetch, c.Concurrency)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, defaultCloseTimeout)
	c.NackInitial = cmp.Or(c.NackInitial, defaultNackInitial)
	c.NackMax = cmp.Or(c.NackMax, max(defaultNackMax, c.NackInitial))
	if c.QueueOf == nil {
		c.QueueOf = func(topic string) string { return topic }
	}
	if c.Quorum == nil {
		c.Quorum = func(string) bool { return true }
	}
	if c.Unmarshal == nil {
		c.Unmarshal = unmarshal
	}
}

func join(subject string, faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", subject, errors.Join(faults...))
}

func unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	uuid, _ := delivery.Headers[UUIDHeader].(string)
	msg := message.NewMessage(uuid, delivery.Body)
	for key, value := range delivery.Headers {
		if text, ok := value.(string); ok && key != UUIDHeader {
			msg.Metadata[key] = text
		}
	}
	return msg, nil
}
