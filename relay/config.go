package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	defaultPrefix = "retry"
	defaultMaxHop = 20 * time.Second

	// leastMaxHop keeps a message that can be neither published nor held any longer from coming back in a hot loop.
	leastMaxHop = 100 * time.Millisecond
)

// Config configures New.
type Config struct {
	// Publisher publishes to tiers, return topics and dead-letter topics. Required, and one of its own: the router closes the
	// publisher of a handler while handlers still run. Publish must return nil only when the backend has the message, and
	// should obey the deadline of the message's context. Close it after the router and the relay.
	Publisher message.Publisher

	// Schedule is the delay before each retry. Required. Its distinct delays are the tiers.
	Schedule backoff.Schedule

	// RetiredSchedule are delays of earlier schedules whose tiers may still hold messages: they are emptied, and nothing new goes there.
	RetiredSchedule backoff.Schedule

	// NewSubscriber makes the subscriber of one tier's topic. Required. All processes of an app share a tier's messages, so
	// they share a consumer group (or queue group, or whatever the backend calls it). Close of the relay closes the
	// subscriber. With Watermill's gochannel return the Pub/Sub itself, without its BlockPublishUntilSubscriberAck.
	NewSubscriber func(SubscriberParams) (message.Subscriber, error)

	// Prefix begins the names of all topics. The default is "retry". Two apps on one backend need different prefixes, or
	// the same schedule and different handler names.
	Prefix string

	// MaxHop is the longest time for which a message of a tier is held before it is acknowledged. Longer tiers are waited for
	// in equal hops. The default is 20 seconds, below the 30 seconds after which many backends hand a message out again. At
	// least 100 ms.
	MaxHop time.Duration

	// GenerateTopic names the topics, for backends that do not allow dots. The names must differ. It is called for handlers of
	// other processes, too. The default is "<Prefix>.<tier>", "<Prefix>.return.<handler>" and "<Prefix>.dead.<handler>".
	GenerateTopic func(TopicParams) (string, error)
}

// SubscriberParams is what NewSubscriber may decide by. Fields may be added.
type SubscriberParams struct {
	Topic string       // the tier's topic
	Tier  backoff.Tier // its delay
	// Hop is one hop of the tier: the tier in equal parts no longer than MaxHop. A message is held up to a twentieth longer
	// where clocks differ, and up to a second where it cannot be published. The backend's redelivery limit must be well
	// above that, or messages come twice: twice MaxHop is a good limit for all tiers.
	Hop time.Duration
}

// TopicKind tells the three kinds of topics apart.
type TopicKind int

// The kinds of topics.
const (
	TierTopic       TopicKind = iota // where messages wait
	ReturnTopic                      // where a handler gets its retries
	DeadLetterTopic                  // where a handler's messages go that are given up
)

// TopicParams is what GenerateTopic may decide by. Fields may be added.
type TopicParams struct {
	Kind    TopicKind
	Prefix  string
	Tier    backoff.Tier // of a TierTopic
	Handler string       // of a ReturnTopic or DeadLetterTopic; UnknownHandler for messages that no handler can be read from
}

// UnknownHandler stands in the name of the dead-letter topic of messages on a tier that say no handler.
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

// Validate reports all faults of the configuration, joined. What is zero and has a default is taken as that.
func (c Config) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: give the relay a publisher of its own")
	}
	scheduleErr := c.Schedule.Validate()
	if scheduleErr != nil {
		fault("Schedule: %w", scheduleErr)
	}
	if len(c.RetiredSchedule) > 0 {
		if err := c.RetiredSchedule.Validate(); err != nil {
			fault("RetiredSchedule: %w", err)
			scheduleErr = err
		}
	}
	if c.NewSubscriber == nil {
		fault("NewSubscriber is nil: it makes the subscriber of one tier; with gochannel return the Pub/Sub itself")
	}
	if c.MaxHop < leastMaxHop {
		fault("MaxHop is %v: it must be 0 (the default, %v) or at least %v", c.MaxHop, defaultMaxHop, leastMaxHop)
	}
	if scheduleErr == nil {
		if _, err := c.tiers(); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// tierTopic is a tier, the topic it is and how long its messages are held at a time.
type tierTopic struct {
	topic string
	tier  backoff.Tier
	hold  time.Duration
}

// tiers are those of the schedule and of former ones, with topics of their own.
func (c Config) tiers() ([]tierTopic, error) {
	var all []tierTopic
	var faults []error
	known := map[string]backoff.Tier{}
	unknown, err := c.topic(TopicParams{Kind: DeadLetterTopic, Handler: UnknownHandler})
	if err != nil {
		faults = append(faults, err)
	}
	for _, tier := range append(c.Schedule[:len(c.Schedule):len(c.Schedule)], c.RetiredSchedule...).Tiers() {
		topic, err := c.topic(TopicParams{Kind: TierTopic, Tier: tier})
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if other, taken := known[topic]; taken {
			faults = append(faults, fmt.Errorf("GenerateTopic gives the tiers %v and %v the same topic %q: every tier needs one of its own", other, tier, topic))
		}
		if topic == unknown {
			faults = append(faults, fmt.Errorf("GenerateTopic gives tier %v and the dead letters of nobody known the same topic %q: every topic needs one of its own", tier, topic))
		}
		known[topic] = tier
		all = append(all, tierTopic{topic: topic, tier: tier, hold: hopOf(time.Duration(tier), c.MaxHop)})
	}
	return all, errors.Join(faults...)
}

// hopOf divides a tier into equal hops no longer than longest, up to the rounding to whole milliseconds.
func hopOf(tier, longest time.Duration) time.Duration {
	hops := (tier-1)/longest + 1
	return ceilMilliseconds((tier-1)/hops + 1)
}

// topic names a topic; a generator that panics or returns nothing is an error.
func (c Config) topic(params TopicParams) (name string, err error) {
	params.Prefix = c.Prefix
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("GenerateTopic panicked for %v: %v", params, recovered)
		}
	}()
	name, err = c.GenerateTopic(params)
	switch {
	case err != nil:
		return "", fmt.Errorf("GenerateTopic cannot name %v: %w", params, err)
	case name == "":
		return "", fmt.Errorf("GenerateTopic gives %v an empty name: give it one of its own", params)
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

// String says for errors which topic is meant.
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
