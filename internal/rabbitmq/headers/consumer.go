package headers

import (
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
	"github.com/tieredretry/watermill-retry/middleware"
)

// The pause before a message that no retry middleware handles is delivered again.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = time.Second
)

// consumingMarshaler binds what it unmarshals to a source.
type consumingMarshaler struct {
	*marshaler
	source *middleware.Source
	warn   func(exchange, routingKey string)

	consumers *sync.Map // of *consumer, by weak.Pointer[amqp091.Channel]
}

// NewConsuming is New for watermill-amqp's subscriber, which sets a message's context only after Unmarshal. Unmarshal marks each
// message with its source. The subscriber nacks without a pause, so Unmarshal also waits before it returns a message that was
// nacked by a handler without the retry middleware: 10 ms, twice as long for each further delivery, at most 1 s. It calls warn
// then, with the exchange and routing key of the message.
func NewConsuming(own app.Marshaler, prefix naming.Prefix, source *middleware.Source, warn func(exchange, routingKey string)) app.Marshaler {
	return &consumingMarshaler{newMarshaler(own, prefix), source, warn, &sync.Map{}}
}

func (m *consumingMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg, err := m.marshaler.Unmarshal(delivery)
	if err != nil {
		return nil, err
	}
	if msg.Acked() == nil { // the app's marshaler has not used message.NewMessage: watermill-amqp would never see the ack
		made := message.NewMessage(msg.UUID, msg.Payload)
		made.Metadata = msg.Metadata
		msg = made
	}
	c := m.consumerOf(delivery)
	if !c.binding.Claimed() {
		if pause := c.next(delivery, msg); pause > 0 {
			original := delivery
			m.restore(&original)
			m.warn(original.Exchange, original.RoutingKey)
			time.Sleep(pause)
		}
	}
	binding.Mark(msg, &c.binding)
	return msg, nil
}

// consumer is one consumer of a work queue. watermill-amqp's subscriber opens a channel for each, and a new one when it reconnects.
type consumer struct {
	binding binding.Binding

	mu     sync.Mutex
	nacked <-chan struct{} // of its newest message; nil: it has had none
	nacks  int64           // of its newest messages, without one between them that was not nacked
}

// consumerOf returns the consumer of a delivery. It is forgotten with its channel, which watermill-amqp's subscriber refers to
// until its message is settled.
func (m *consumingMarshaler) consumerOf(delivery amqp091.Delivery) *consumer {
	channel, _ := delivery.Acknowledger.(*amqp091.Channel)
	key := weak.Make(channel) // nil for the consumers of another client, which share one
	if c, found := m.consumers.Load(key); found {
		return c.(*consumer)
	}
	c, found := m.consumers.LoadOrStore(key, &consumer{binding: binding.Binding{Source: m.source}})
	if !found && channel != nil {
		consumers := m.consumers
		runtime.AddCleanup(channel, func(key weak.Pointer[amqp091.Channel]) {
			if c, found := consumers.LoadAndDelete(key); found {
				c.(*consumer).binding.Forget() // of what was not settled at a shutdown
			}
		}, key)
	}
	return c.(*consumer)
}

// next returns the pause before a message. The first of a consumer has none: with the middleware, the consumer is claimed
// before its second.
func (c *consumer) next(delivery amqp091.Delivery, msg *message.Message) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.nacked == nil
	select {
	case <-c.nacked:
		c.nacks++
	default:
		c.nacks = 0
	}
	c.nacked = msg.Nacked()
	if first || !delivery.Redelivered {
		return 0
	}
	count := redelivery.Count(delivery.Headers)
	if count == 0 { // a classic queue does not count
		count = c.nacks
	}
	return pauseAfter(count)
}

// pauseAfter returns the pause before a message that was delivered this often before.
func pauseAfter(deliveries int64) time.Duration {
	if deliveries <= 0 {
		return 0
	}
	return min(shortestPause<<min(deliveries-1, 10), longestPause)
}
