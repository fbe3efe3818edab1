package middleware

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// shutdownPause is longer than ten of the rounds that watermill-amqp's subscriber needs to see that its context has
// ended.
const shutdownPause = time.Second

// RetryDestinationParams is what GenerateRetryDestination may decide by. Fields may be added.
type RetryDestinationParams struct {
	Topic   string       // the topic the handler subscribes to
	Queue   string       // the queue that the message was in; empty where its subscriber does not name it
	Handler string       // the handler's name in the router
	Tier    backoff.Tier // the tier the message is to wait on
	// how often the message has failed, this failure included; 0 for a message that is only parked
	Failures int
}

// DeadLetterDestinationParams is what GenerateDeadLetterDestination may decide by. Fields may be added.
type DeadLetterDestinationParams struct {
	Topic      string           // the topic the handler subscribes to
	Queue      string           // the queue that the message was in; empty where its subscriber does not name it
	Handler    string           // the handler's name in the router
	Failures   int              // how often the message has failed, this failure included
	DeadReason retry.DeadReason // why it is dead-lettered
}

// TieredRetryConfig configures NewTieredRetry: a policy, and what a backend needs. Builder.TieredRetryConfig of package
// config makes one for RabbitMQ, Relay.TieredRetryConfig of package relay one for other Pub/Subs. An app changes the
// Policy only.
type TieredRetryConfig struct {
	// Policy decides about failures.
	Policy retry.Policy

	// Publisher publishes the copies. Required. It must not be the publisher of a handler: the router closes that one
	// while handlers still run. Publish must return nil only when the message is safe, and should obey the deadline of
	// the message's context. Close it after the router has closed.
	Publisher message.Publisher

	// DeclaredTiers are the tiers that exist on the broker or in the relay. A Policy with another tier is refused:
	// nothing would bring its messages back. Empty: the tiers are not checked.
	DeclaredTiers []backoff.Tier

	// Source is where the messages must come from. A builder, a relay and a Connection set it. The messages of another
	// source are refused: each is held up to MaxHold, and the error in the log says what to do. The handler is not
	// called and nothing is published. Nil: the source is not checked.
	Source *Source

	// GenerateRetryDestination returns the destination whose messages come back to the failed handler after the tier's
	// delay. Required.
	GenerateRetryDestination func(RetryDestinationParams) (retry.Destination, error)

	// GenerateDeadLetterDestination returns the destination of the messages that are given up. Required.
	GenerateDeadLetterDestination func(DeadLetterDestinationParams) (retry.Destination, error)

	// TiersWait is true where a copy comes back when the delay of its tier is over, as on RabbitMQ, and false where the
	// backend waits until the due time of each message, as package relay does. Tiers can have one tier more then.
	TiersWait bool

	// DelayArrivals makes a message wait before its first try if it has the metadata of Watermill's components/delay.
	// The delay begins when the message arrives. It must be false for a Pub/Sub that delays such messages by itself:
	// they would wait twice.
	DelayArrivals bool

	// Observers are those of the Connection, which sets it: call its Observe. An app that wires the parts by itself
	// makes one. Optional.
	Observers *Observers
}

// Tiers returns all tiers that messages may wait on: those of Schedule, of Rules and ExtraTiers, ascending. With a
// Jitter, the lanes of Schedule and of Rules are among them. Where TiersWait, one of 1s is among them, for requested
// delays, if there are tiers below 1s and the next longer one is more than 20 times as long, or there is none.
func (c *TieredRetryConfig) Tiers() []backoff.Tier {
	all := slices.Concat(c.plainTiers(), backoff.Schedule(c.lanes()).Tiers())
	slices.Sort(all)
	return slices.Compact(all)
}

// plainTiers are Tiers without Jitter.
func (c *TieredRetryConfig) plainTiers() []backoff.Tier {
	tiers := backoff.Schedule(unionOf(c.Policy.Schedule, c.Policy.Rules, c.Policy.ExtraTiers)).Tiers()
	at, found := slices.BinarySearch(tiers, roundTier)
	if !c.TiersWait || found || at == 0 || at < len(tiers) && !tooManyRounds(time.Duration(tiers[at]), tiers[at-1]) {
		return tiers
	}
	return slices.Insert(tiers, at, roundTier)
}

const (
	// roundTier is added to tiers that are shorter, so that a message with a long delay is published about once a
	// second.
	roundTier = backoff.Tier(time.Second)
	// maxShortRounds is how many rounds a wait takes at most on a tier that is shorter than roundTier.
	maxShortRounds = 20
)

// tooManyRounds reports whether a wait is too long for a tier that is shorter than roundTier.
func tooManyRounds(wait time.Duration, tier backoff.Tier) bool {
	return tier < roundTier && wait > maxShortRounds*time.Duration(tier)
}

// lanes are the lanes of all delays that are spread.
func (c *TieredRetryConfig) lanes() (lanes []time.Duration) {
	if c.Policy.Jitter == 0 {
		return nil
	}
	for _, tier := range backoff.Schedule(unionOf(c.Policy.Schedule, c.Policy.Rules, nil)).Tiers() {
		lanes = append(lanes, backoff.Lanes(time.Duration(tier), c.Policy.Jitter)...)
	}
	return lanes
}

// policy returns what decisions depend on.
func (c *TieredRetryConfig) policy() policy {
	p := policy{
		schedule: c.Policy.Schedule, tiers: c.plainTiers(), jitter: c.Policy.Jitter, tiersWait: c.TiersWait,
		maxAge: c.Policy.MaxAge, maxDelay: c.Policy.MaxDelay,
	}
	p.lanes = without(c.Tiers(), p.tiers)
	return p
}

// unionOf returns a schedule with all tiers.
func unionOf(schedule backoff.Schedule, rules []retry.Rule, extra []time.Duration) backoff.Schedule {
	if len(rules) == 0 && len(extra) == 0 {
		return schedule
	}
	all := slices.Concat(schedule, extra)
	for _, rule := range rules {
		all = append(all, rule.Then.Schedule...)
	}
	return all
}

// Validate reports all faults of the configuration, joined. Durations that are zero count as their defaults.
func (c TieredRetryConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: give the middleware a publisher that no handler uses, for RabbitMQ the one of " +
			"Builder.NewPublisher")
	}
	if err := c.Policy.Validate(); err != nil {
		fault("%w", err)
	}
	undeclared := func(tier backoff.Tier) bool {
		return len(c.DeclaredTiers) > 0 && !slices.Contains(c.DeclaredTiers, tier)
	}
	for _, tier := range c.plainTiers() {
		if undeclared(tier) {
			fault("Schedule, Rules or ExtraTiers have the tier %v, which is not declared (declared: %v): give this "+
				"schedule to the builder or the relay that made the configuration",
				tier, c.DeclaredTiers)
		}
	}
	if lanes := backoff.Schedule(c.lanes()).Tiers(); slices.ContainsFunc(lanes, undeclared) {
		fault("Jitter is %v and needs the tiers %v, which are not all declared (declared: %v): give the Jitter to "+
			"the builder, or the tiers to "+
			"AddSchedule of the relay, before it makes the configuration", c.Policy.Jitter, lanes, c.DeclaredTiers)
	}
	if c.GenerateRetryDestination == nil {
		fault("GenerateRetryDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, " +
			"Relay.TieredRetryConfig for other Pub/Subs")
	}
	if c.GenerateDeadLetterDestination == nil {
		fault("GenerateDeadLetterDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, " +
			"Relay.TieredRetryConfig for other Pub/Subs")
	}
	return errors.Join(faults...)
}
