package subscriber

import (
	"cmp"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
)

const (
	defaultConcurrency  = 16
	defaultCloseTimeout = 30 * time.Second // as message.RouterConfig.CloseTimeout
)

// Config is the configuration of a Subscriber. Every field has a default. Package door checks what apps set.
type Config struct {
	// Name is the subscriber's name in Health, for example that of its handler. It may be empty.
	Name string

	// Concurrency is how many calls of the handler each Subscribe call has: messages that are handed out, and whose
	// call has not ended. It stays the bound while the connection is lost, because handlers go on meanwhile. With 1,
	// messages are handed out one after the other in the order of the queue. Default 16, at most 65535.
	Concurrency int

	// Prefetch is how many messages the broker sends ahead of their acks, and how many are in flight: handed out, and
	// neither acked nor nacked. With a Concurrency of 1 and with an OrderKey, Concurrency is the bound of these, too.
	// More than Concurrency makes fast handlers faster, and lets messages of other keys overtake when many wait for one
	// key of OrderKey. All that were not handed out go back to the queue at a shutdown, and, on RabbitMQ before 4.3,
	// count towards a quorum queue's delivery limit. Default Concurrency; at least Concurrency, at most 65535.
	Prefetch int

	// OrderKey returns a message's key. Messages with the same key are handed out one after the other, in the order of
	// the queue: the next one when the previous one has been acked or nacked. Messages of other keys are handed out
	// meanwhile. A message that waits for its key takes a place of Prefetch and none of Concurrency. Messages with an
	// empty key have no order. With an OrderKey, one goroutine for each Subscribe call unmarshals its messages. Nil: no
	// order.
	OrderKey func(msg *message.Message) string

	// Gate limits how many messages each Subscribe call has in flight, while it runs. See "Limits" in the documentation
	// of the package. Default a gate without limits.
	Gate *gate.Gate

	// Consumer has options of basic.consume.
	Consumer channel.Options

	// CloseTimeout is how long messages in flight may go on after Close, or after the end of Subscribe's context. Then
	// their contexts end, and one second later they are given up: the broker delivers them again. Default 30 s, which
	// is the default of Watermill's router.
	CloseTimeout time.Duration

	// LongestNack is the bound of the pause between a nack and the requeueing of the message. The pause starts at 10 ms,
	// and doubles with each delivery of the message. Deliveries are counted by the broker (x-delivery-count,
	// x-acquired-count: quorum queues), or else by each Subscribe call, for the last 1024 messages that it nacked. The
	// message keeps its place of Concurrency meanwhile, where its call has not ended. Default 5 s.
	LongestNack time.Duration
}

func (c *Config) setDefaults() {
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.Prefetch = cmp.Or(c.Prefetch, c.Concurrency)
	if c.Gate == nil {
		c.Gate = gate.New(c.Concurrency)
	}
	c.CloseTimeout = cmp.Or(c.CloseTimeout, defaultCloseTimeout)
	c.LongestNack = cmp.Or(c.LongestNack, pauses.Longest)
}

// inFlight is how many messages may be handed out and not settled. Where there is an order, a message is not handed out
// before the one before it is settled.
func (c *Config) inFlight() int {
	if c.OrderKey != nil || c.Concurrency == 1 {
		return c.Concurrency
	}
	return c.Prefetch
}
