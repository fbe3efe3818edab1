package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	defaultMaxHop = 20 * time.Second

	// minMaxHop prevents a hot loop: a message that can be neither published nor held any longer is redelivered at
	// once.
	minMaxHop = 100 * time.Millisecond
)

// Config configures Connect. The publishers, and the subscribers that NewSubscriber makes, then belong to the
// connection, which closes them.
type Config struct {
	// Publisher publishes copies: to tiers, return topics and dead-letter topics. Required. Publish must return nil
	// only when the backend has stored the message, and should obey the deadline of the message's context.
	Publisher message.Publisher

	// AppPublisher publishes the app's own messages: those of AddHandler and retry.Connection.Publisher. Nil: Publisher
	// does that, too. Close closes both.
	AppPublisher message.Publisher

	// Policy decides about failures of all handlers without a policy of their own. Its Schedule is required.
	Policy retry.Policy

	// RetiredSchedule has the delays of earlier schedules whose tiers may still contain messages. The relay empties
	// these tiers; no new message goes there. The default is none.
	RetiredSchedule backoff.Schedule

	// NewSubscriber makes the subscriber of a handler, or of a tier. Required. A handler subscribes to its topic, and
	// with the same subscriber to its return topic. All processes of an app share the messages of a tier: the
	// subscribers of tiers need the same consumer group (or queue group). With Watermill's gochannel, return the
	// Pub/Sub itself, configured without BlockPublishUntilSubscriberAck.
	NewSubscriber func(SubscriberParams) (message.Subscriber, error)

	// Prefix is the start of all topic names. The default is "retry". Two apps on one backend need different prefixes,
	// or the same schedule and different handler names.
	Prefix string

	// Separator is between the parts of topic names, which are "<Prefix>.<tier>", "<Prefix>.return.<handler>" and
	// "<Prefix>.dead.<handler>". The default is a dot. Set it for a backend that does not allow dots in topic names. The
	// names of handlers and topics are used as they are.
	Separator string

	// MaxHop is the longest time for which the relay keeps a message of a tier unacknowledged. A longer tier is divided
	// into equal hops. The default is 20 seconds, because many backends redeliver a message after 30 seconds. The
	// minimum is 100 ms.
	MaxHop time.Duration

	// DelayedReturns: the backend itself delays the messages of return topics, until the time in the metadata of
	// Watermill's components/delay (delay.DelayedUntilKey), as watermill-sql's delayed Pub/Sub does. Publisher then
	// publishes copies to return topics, and there are no tier topics. The default is false.
	DelayedReturns bool
}

// SubscriberParams describes the handler or the tier that NewSubscriber makes a subscriber for. Fields may be added.
type SubscriberParams struct {
	// Handler is the name of the handler, or that of Connection.Subscriber. It is empty for a tier.
	Handler string

	// Group is the consumer group of the handler: make it the group of the subscriber where the Pub/Sub has consumer
	// groups. Without one, as on gochannel, each handler gets every message. It is empty where neither the handler nor
	// the connection has a group.
	Group string

	// Tier is the delay of the tier. It is 0 for a handler.
	Tier backoff.Tier

	// Hop is the length of one hop of the tier: the tier divided into equal parts, none longer than MaxHop. A message
	// can stay unacknowledged 5% + 2 ms longer where clocks differ, and up to a second where it cannot be published, or
	// where the tier is the longest one and the requested delay is longer. The redelivery limit of the backend must be
	// well above that, or messages come twice. Twice MaxHop is a good limit for all tiers.
	Hop time.Duration
}

func (c *Config) setDefaults() {
	if c.MaxHop == 0 {
		c.MaxHop = defaultMaxHop
	}
}

func (c *Config) topics() relaytopic.Names {
	return relaytopic.Names{Prefix: c.Prefix, Separator: c.Separator}
}

// Validate reports all faults of the configuration in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: set the publisher of the copies")
	}
	if err := c.Policy.Validate(); err != nil {
		fault("Policy: %w", err)
	}
	if len(c.RetiredSchedule) > 0 {
		if err := c.RetiredSchedule.Validate(); err != nil {
			fault("RetiredSchedule: %w", err)
		}
	}
	if c.NewSubscriber == nil {
		fault("NewSubscriber is nil: set a function that returns the subscriber of one handler or tier; with " +
			"gochannel return the Pub/Sub itself")
	}
	if c.MaxHop < minMaxHop {
		fault("MaxHop is %v: it must be 0 (the default, %v) or at least %v", c.MaxHop, defaultMaxHop, minMaxHop)
	}
	return errors.Join(faults...)
}

// newSubscriber makes the subscriber of a handler or of a tier.
func (c *Config) newSubscriber(p SubscriberParams) (message.Subscriber, error) {
	s, err := c.NewSubscriber(p)
	if err == nil && s == nil {
		err = errors.New("NewSubscriber returned neither a subscriber nor an error: return a subscriber")
	}
	return s, err
}
