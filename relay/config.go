package relay

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

// Config configures Connect. The publishers, and the subscribers that NewSubscriber makes, then belong to the
// connection, which closes them.
type Config struct {
	// Publisher publishes copies: to tiers, return topics and dead-letter topics. Required. Publish must return nil
	// only when the backend has stored the message, and should obey the deadline of the message's context. Each tier
	// calls it up to 256 times at once for each topic, with one message each: it must be safe for so many calls.
	Publisher message.Publisher

	// AppPublisher publishes the app's own messages: those of AddHandler and retry.Connection.Publisher. Nil: Publisher
	// does that, too. Close closes both.
	AppPublisher message.Publisher

	// Policy decides about failures of all handlers without a policy of their own. Its Schedule is required.
	Policy retry.Policy

	// RetiredSchedule has the delays of earlier schedules whose tiers may still contain messages, with the lanes of a
	// Jitter. The relay empties these tiers; no new message goes there. The default is none.
	RetiredSchedule backoff.Schedule

	// NewSubscriber makes the subscriber of a handler, or of a tier. Required. A handler subscribes to its topic, and
	// with the same subscriber to its return topic. All processes of an app share the messages of a tier: the
	// subscribers of tiers need the same consumer group (or queue group), and must keep a message unacknowledged as
	// long as its tier lasts. With Watermill's gochannel, return the Pub/Sub itself, configured without
	// BlockPublishUntilSubscriberAck.
	NewSubscriber func(SubscriberParams) (message.Subscriber, error)

	// Group is the consumer group of the handlers whose Options have none, and the name of the service: services with
	// different groups do not meet. Leave it empty where the Pub/Sub has no consumer groups, as gochannel.
	Group string

	// Prefix is the start of all topic names: at most 40 characters, each a letter, a digit, a dot, an underscore or a
	// hyphen. The default is "retry".
	Prefix string

	// DelayedReturns: the backend itself delays what Publisher publishes to return topics, for the time in the metadata
	// of Watermill's components/delay (delay.DelayedForKey, a duration). Without that metadata it delivers at once.
	// Copies then go to return topics, and there are no tiers. The default is false.
	DelayedReturns bool
}

// SubscriberParams describes the handler or the tier that NewSubscriber makes a subscriber for. Fields may be added.
type SubscriberParams struct {
	// Handler is the name of the handler, or that of Connection.Subscriber. It is empty for a tier.
	Handler string

	// Topic is the topic of the handler: a name that the backend refuses can be an error here, before any handler
	// consumes. It is empty for a tier, and for Connection.Subscriber, which can have several.
	Topic string

	// Group is the consumer group of the handler: make it the group of the subscriber. It is that of its Options, else
	// that of the Config. It is empty for a tier.
	Group string

	// Concurrency is how many calls of the handler run at the same time, at most. The subscriber should have as many
	// messages of a topic in flight. The relay itself bounds the calls. It is 0 for a tier.
	Concurrency int

	// Tier is the delay of the tier. It is 0 for a handler.
	Tier backoff.Tier
}

func (c *Config) topics() relaytopic.Names { return relaytopic.Names{Prefix: c.Prefix} }

// Validate reports all faults of the configuration in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	var all []error
	fault := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: set the publisher of the copies")
	}
	all = append(all, faults.In("Policy", options.Relayed(c.Policy)))
	if len(c.RetiredSchedule) > 0 {
		all = append(all, faults.Of("RetiredSchedule", c.RetiredSchedule.Validate()))
	}
	if c.NewSubscriber == nil {
		fault("NewSubscriber is nil: set a function that returns the subscriber of one handler or tier; with " +
			"gochannel return the Pub/Sub itself")
	}
	if err := c.topics().Validate(); err != nil {
		fault("%w", err)
	}
	return errors.Join(all...)
}

// newSubscriber makes the subscriber of a handler or of a tier.
func (c *Config) newSubscriber(p SubscriberParams) (message.Subscriber, error) {
	s, err := c.NewSubscriber(p)
	if err == nil && s == nil {
		err = errors.New("NewSubscriber returned neither a subscriber nor an error: return a subscriber")
	}
	return s, err
}
