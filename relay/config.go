package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	defaultPrefix = "retry"
	defaultMaxHop = 20 * time.Second

	// minMaxHop prevents a hot loop: a message that can be neither published nor held any longer is redelivered at
	// once.
	minMaxHop = 100 * time.Millisecond
)

// Config configures New and Connect.
type Config struct {
	// Publisher publishes to tiers, return topics and dead-letter topics. Required. It must not be a handler's
	// publisher: the router closes that while handlers still run. Publish must return nil only when the backend has
	// stored the message, and should obey the deadline of the message's context. The relay does not close it: close it
	// after the router and the relay.
	Publisher message.Publisher

	// Policy decides about failures: with Connect, of all handlers without a policy of their own. Its Schedule is
	// required.
	Policy retry.Policy

	// RetiredSchedule has the delays of earlier schedules whose tiers may still contain messages. The relay empties
	// these tiers; no new message goes there. The default is none.
	RetiredSchedule backoff.Schedule

	// NewSubscriber makes the subscriber of one tier's topic. Required, unless DelayedReturns is set. All processes of
	// an app share the messages of a tier: their subscribers need the same consumer group (or queue group). Relay.Close
	// closes the subscriber. With Watermill's gochannel, return the Pub/Sub itself, configured without
	// BlockPublishUntilSubscriberAck.
	NewSubscriber func(SubscriberParams) (message.Subscriber, error)

	// Prefix is the start of all topic names. The default is "retry". Two apps on one backend need different prefixes,
	// or the same schedule and different handler names.
	Prefix string

	// MaxHop is the longest time for which the relay keeps a message of a tier unacknowledged. A longer tier is divided
	// into equal hops. The default is 20 seconds, because many backends redeliver a message after 30 seconds. The
	// minimum is 100 ms.
	MaxHop time.Duration

	// DelayedReturns: the backend itself delays the messages of return topics, until the time in the metadata of
	// Watermill's components/delay (delay.DelayedUntilKey), as watermill-sql's delayed Pub/Sub does. Publisher then
	// publishes copies to return topics, and there are no tier topics. The default is false.
	DelayedReturns bool

	// GenerateTopic returns the name of a topic. The names must be unique. It is also called for handlers of other
	// processes. The default is "<Prefix>.<tier>", "<Prefix>.return.<handler>" and "<Prefix>.dead.<handler>"; set it
	// for a backend that does not allow dots in topic names.
	GenerateTopic func(TopicParams) (string, error)
}

// SubscriberParams describes the tier that NewSubscriber makes a subscriber for. Fields may be added.
type SubscriberParams struct {
	Topic string       // the tier's topic
	Tier  backoff.Tier // the tier's delay
	// Hop is the length of one hop of the tier: the tier divided into equal parts, none longer than MaxHop. A message
	// can stay unacknowledged 5% + 2 ms longer where clocks differ, and up to a second where it cannot be published, or
	// where the tier is the longest one and the requested delay is longer. The redelivery limit of the backend must be
	// well above that, or messages come twice. Twice MaxHop is a good limit for all tiers.
	Hop time.Duration
}

// TopicKind is the kind of a topic.
type TopicKind int

// The kinds of topics.
const (
	TierTopic       TopicKind = iota // where messages wait
	ReturnTopic                      // where a handler receives its retries
	DeadLetterTopic                  // where the dead letters of a handler go
)

// TopicParams describes the topic that GenerateTopic returns a name for. Fields may be added.
type TopicParams struct {
	Kind    TopicKind
	Prefix  string
	Tier    backoff.Tier // of a TierTopic
	Handler string       // of a ReturnTopic or DeadLetterTopic; UnknownHandler for messages whose handler is unknown
}

// UnknownHandler is the handler name in the dead-letter topic of messages on a tier whose metadata name no handler.
const UnknownHandler = "unknown"

func (c *Config) setDefaults() {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.MaxHop == 0 {
		c.MaxHop = defaultMaxHop
	}
	if c.GenerateTopic == nil {
		c.GenerateTopic = defaultTopic
	}
}

// Validate reports all faults of the configuration in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: give the relay a publisher of its own")
	}
	scheduleErr := c.Policy.Validate()
	if scheduleErr != nil {
		fault("Policy: %w", scheduleErr)
	}
	if len(c.RetiredSchedule) > 0 {
		if err := c.RetiredSchedule.Validate(); err != nil {
			fault("RetiredSchedule: %w", err)
			scheduleErr = err
		}
	}
	if c.NewSubscriber == nil && !c.DelayedReturns {
		fault("NewSubscriber is nil: set a function that returns the subscriber of one tier; with gochannel return " +
			"the Pub/Sub itself")
	}
	if c.MaxHop < minMaxHop {
		fault("MaxHop is %v: it must be 0 (the default, %v) or at least %v", c.MaxHop, defaultMaxHop, minMaxHop)
	}
	if scheduleErr == nil {
		if _, err := newTierSet(c, tiersOf(c.Policy)); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// Topic returns the name of a topic, by Prefix and GenerateTopic. A generator that panics or returns an empty name is
// an error.
func (c Config) Topic(params TopicParams) (name string, err error) {
	c.setDefaults()
	params.Prefix = c.Prefix
	panicked := panics.Call(func() { name, err = c.GenerateTopic(params) })
	switch {
	case panicked != nil:
		return "", fmt.Errorf("GenerateTopic panicked for %v: %v", params, panicked.Value)
	case err != nil:
		return "", fmt.Errorf("GenerateTopic returned an error for %v: %w", params, err)
	case name == "":
		return "", fmt.Errorf("GenerateTopic returned an empty name for %v: return a unique name", params)
	}
	return name, nil
}

func defaultTopic(params TopicParams) (string, error) {
	switch params.Kind {
	case TierTopic:
		return params.Prefix + "." + params.Tier.String(), nil
	case ReturnTopic:
		return params.Prefix + ".return." + params.Handler, nil
	default:
		return params.Prefix + ".dead." + params.Handler, nil
	}
}

// String describes the topic in errors.
func (p TopicParams) String() string {
	switch p.Kind {
	case TierTopic:
		return fmt.Sprintf("the topic of tier %v", p.Tier)
	case ReturnTopic:
		return fmt.Sprintf("the return topic of handler %q", p.Handler)
	default:
		return fmt.Sprintf("the dead-letter topic of handler %q", p.Handler)
	}
}
