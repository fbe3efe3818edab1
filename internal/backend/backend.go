// Package backend is what the retry middleware asks of a backend: RabbitMQ, or a relay on another Pub/Sub. Package
// middleware decides, and a Backend publishes.
package backend

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// Backend publishes the copies of failed messages. NewTieredRetry of a builder of package config makes the middleware
// with one for RabbitMQ, and Connect of package relay with one for other Pub/Subs.
type Backend interface {
	// Use makes the tiers of a policy ready for copies, and returns what differs between backends. New calls it once.
	// The error is that of New.
	Use(policy retry.Policy) (Traits, error)

	// Publish publishes a copy, and returns where to. It must return nil only when the copy is safe, and should obey
	// the deadline of the message's context. It returns the destination with an error too, where it is known. The error
	// wraps a *unpublished.Error; any other error counts as temporary. A panic counts as a temporary error.
	Publish(c Copy) (Destination, error)
}

// Copy is what a Backend publishes in place of a failed message.
type Copy struct {
	Message *message.Message // the backend may change it
	Topic   string           // the topic the handler subscribes to
	Queue   string           // the queue that the message was in; empty where its subscriber does not name it
	Handler string           // the handler's name in the router
	Tier    backoff.Tier     // the tier that the message is to wait on; 0: it is a dead letter, or Blocked
	Blocked bool             // it would be a dead letter, and keeps those of its key waiting; see Traits.Blocks

	// Suspect is the same one for all tries of a message. A backend may set it when the broker closes a channel because
	// of the message, to publish it alone at the next try.
	Suspect *atomic.Bool
}

// Destination is where a copy is published.
type Destination struct {
	Topic string // the topic that the copy is published to; on RabbitMQ the routing key
	Queue string // the queue or topic on which the copy then is, for logs and events; empty: Topic
}

// String returns Queue, or Topic where Queue is empty.
func (d Destination) String() string { return cmp.Or(d.Queue, d.Topic) }

// Traits are what differs between backends.
type Traits struct {
	// TiersWait is true where a copy comes back when the delay of its tier is over, as on RabbitMQ, and false where the
	// backend waits until the due time of each message, as package relay does. Tiers can have one tier more then.
	TiersWait bool

	// DelayArrivals makes a message wait before its first try if it has the metadata of Watermill's components/delay.
	// The delay begins when the message arrives. It must be false for a Pub/Sub that delays such messages by itself:
	// they would wait twice.
	DelayArrivals bool

	// Blocks makes a message that would become a dead letter keep those of its key waiting, until an operator decides.
	Blocks bool

	// Source is where the messages must come from. The messages of another source are refused: each is held up to
	// MaxHold, and the error in the log says what to do. The handler is not called and nothing is published. Nil: the
	// source is not checked.
	Source *Source

	// Observers get the outcomes. Nil: there are none.
	Observers *Observers
}

// Source is where the messages of a middleware must come from: its destinations bring a copy back to a queue of that
// subscriber only. An app does not make one.
type Source struct {
	// Owner is what made the subscriber of a message, in the context of the message. Comparable.
	Owner any
	// Token is that of the builder that made the subscriber, in the metadata of the message, in place of Owner.
	Token string
	// QueueName returns the work queue of a topic of the builder. Nil: the subscription of a message has it.
	QueueName func(topic string) string
	Name      string // the name of the owner, for errors
	Subscribe string // how to make a subscriber of this source, for errors
}

// SimulatedMessage is the message of TieredRetry.Simulate.
type SimulatedMessage struct {
	// Topic and Handler are those of the events. Optional.
	Topic, Handler string

	// Handle returns the error of a call of the handler, counted from 1. Required.
	Handle func(call int) error

	// Takes is how long each call of the handler takes. The default is 0.
	Takes time.Duration

	// Age is how old the message is when it is delivered first, as MaxAgeFrom returns it. The default is 0: not known.
	Age time.Duration
}
