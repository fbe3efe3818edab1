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

const (
	defaultPublishTimeout = 30 * time.Second
	defaultMaxHold        = 10 * time.Minute
	defaultMaxDelay       = 30 * 24 * time.Hour

	// shutdownPause is longer than ten of the rounds that watermill-amqp's subscriber needs to see that its context has ended.
	shutdownPause = time.Second
)

// RetryDestinationParams is what GenerateRetryDestination may decide by. Fields may be added.
type RetryDestinationParams struct {
	Topic    string       // the topic the handler subscribes to
	Queue    string       // the queue that the message was in; empty where its subscriber does not name it
	Handler  string       // the handler's name in the router
	Tier     backoff.Tier // the tier the message is to wait on
	Failures int          // how often the message has failed, this failure included; 0 for a message that is only parked
}

// DeadLetterDestinationParams is what GenerateDeadLetterDestination may decide by. Fields may be added.
type DeadLetterDestinationParams struct {
	Topic      string           // the topic the handler subscribes to
	Queue      string           // the queue that the message was in; empty where its subscriber does not name it
	Handler    string           // the handler's name in the router
	Failures   int              // how often the message has failed, this failure included
	DeadReason retry.DeadReason // why it is dead-lettered
}

// TieredRetryConfig configures NewTieredRetry. Builder.TieredRetryConfig of package config makes one for RabbitMQ,
// Relay.TieredRetryConfig of package relay one for other Pub/Subs.
type TieredRetryConfig struct {
	// Publisher publishes the copies. Required. It must not be the publisher of a handler: the router closes that one while
	// handlers still run. Publish must return nil only when the message is safe, and should obey the deadline of the
	// message's context. Close it after the router has closed.
	Publisher message.Publisher

	// Schedule is the delay before each retry. Required. Its distinct delays are the tiers.
	Schedule backoff.Schedule

	// DeclaredTiers are the tiers that exist on the broker or in the relay, which set it. A Schedule with another tier is refused:
	// nothing would bring its messages back. Empty: the tiers are not checked.
	DeclaredTiers []backoff.Tier

	// Source is where the messages must come from. A builder, a relay and a Connection set it. The messages of another source are
	// refused: each is held up to MaxHold, and the error in the log says what to do. The handler is not called and nothing is published.
	// Nil: the source is not checked.
	Source *Source

	// GenerateRetryDestination returns the destination whose messages come back to the failed handler after the tier's delay.
	// Required.
	GenerateRetryDestination func(RetryDestinationParams) (retry.Destination, error)

	// GenerateDeadLetterDestination returns the destination of the messages that are given up. Required.
	GenerateDeadLetterDestination func(DeadLetterDestinationParams) (retry.Destination, error)

	// Rules decide about failures of one kind, in order: the first one that matches. Where none matches, the error itself decides
	// (backoff.Permanent, backoff.RetryAfter), and then Schedule. Optional.
	Rules []retry.Rule

	// Jitter spreads the retries of messages that have failed together: each delay d of Schedule, and of a RetryWith rule, becomes a
	// random one from d to d+d*Jitter, never a shorter one. Where TiersWait, the delay is one of the lanes of d: see backoff.Lanes. A
	// requested delay is not changed. MaxAge counts the delay that was chosen. The default is 0: none. At most 1.
	// With a Jitter, each tier of a schedule has eight queues or topics.
	Jitter float64

	// MaxAge is how old a message may be, from its first failure on, or from its first arrival if it had to wait then for a requested
	// delay. An older one, and one that would be older when its wait is over, is dead-lettered as expired. The times are those of the hosts:
	// an hour of difference between two clocks is an hour of age. 0: no limit.
	MaxAge time.Duration

	// MaxAgeFrom returns when a message was sent, for example from its metadata. MaxAge then holds from that time, too. A zero time
	// is not known. It is called for every message, and must be safe for concurrent use. Optional.
	MaxAgeFrom func(*message.Message) time.Time

	// MaxDelay is the longest requested delay: of backoff.RetryAfter, of the metadata of Watermill's components/delay, and of what remains
	// of it in the failure record. Any publisher can set the last two. A longer delay is cut, and the first cut is logged. The default is
	// 30 days, or the longest delay of Schedule, Rules and ExtraTiers if that is longer. It must not be below the longest delay of
	// Schedule and Rules, and not above backoff.MaxDelay, ten years.
	MaxDelay time.Duration

	// ExtraTiers are tiers that no schedule uses. A requested delay waits on the longest tier that is not above it, then on the
	// longest that is not above the rest, and so on: more tiers make fewer rounds. See backoff.Ladder. Optional.
	ExtraTiers []time.Duration

	// TiersWait is true where a copy comes back when the delay of its tier is over, as on RabbitMQ, and false where the backend waits
	// until the due time of each message, as package relay does. Builder.TieredRetryConfig sets it. Tiers can have one tier more then.
	TiersWait bool

	// DelayArrivals makes a message wait before its first try if it has the metadata of Watermill's components/delay. The delay
	// begins when the message arrives. Builder.TieredRetryConfig and Relay.TieredRetryConfig set it. It must be false for a Pub/Sub
	// that delays such messages by itself: they would wait twice.
	DelayArrivals bool

	// Breaker pauses a handler while most of its messages fail. Nil: only a rule with Pause, and an open circuit breaker of
	// Watermill inside, pause it.
	Breaker *retry.Breaker

	// Observe gets the outcome of every delivery. It cannot change the outcome. It runs in the handler's goroutine, after a copy has
	// been published and before the message is acknowledged. A panic in it is logged. On a short tier the message may be back, in
	// another handler, before Observe has run. It must be safe for concurrent use. Optional.
	Observe func(retry.Event)

	// Observers are those of the Connection, which sets it: call its Observe. An app that wires the parts by itself makes one. Optional.
	Observers *Observers

	// PublishTimeout is the deadline of one attempt to publish a copy. The default is 30 seconds. It also holds after the
	// message's own context has ended, so that a handler's timeout does not lose the message.
	PublishTimeout time.Duration

	// MaxHold is how long a message is held, with its handler's goroutine, while its copy cannot be published. It may last one
	// PublishTimeout longer. After it the message is nacked, with the handler's error and the publisher's. The default is 10
	// minutes. It must stay below the broker's consumer timeout (RabbitMQ: 30 minutes by default).
	MaxHold time.Duration

	// RedactReason changes the text of an error before it is recorded in the message and logged, to keep secrets out of them.
	// It gets the text, cut to 64 KiB of valid UTF-8, and the error. What it returns is cut to 1 KiB. Where it panics, only
	// the error's type is recorded. It also gets the error with which the publisher refuses a dead letter, for Record.LeftOff. It
	// must be safe for concurrent use. Optional.
	RedactReason func(reason string, err error) string

	// OmitReason records and logs the error's type only, never its text. The router itself still logs the error of a message
	// that is given back because its copy could not be published.
	OmitReason bool

	// DeepCopy gives the handler copies of payload and metadata, for handlers that write into the payload's bytes or the
	// metadata's map. Handlers that replace them need no copy. It costs two allocations for every message.
	DeepCopy bool
}

func (c *TieredRetryConfig) setDefaults() {
	if c.PublishTimeout == 0 {
		c.PublishTimeout = defaultPublishTimeout
	}
	if c.MaxHold == 0 {
		c.MaxHold = defaultMaxHold
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = slices.Max(append(c.ExtraTiers[:len(c.ExtraTiers):len(c.ExtraTiers)], c.longestDelay(), defaultMaxDelay))
	}
}

// Tiers returns all tiers that messages may wait on: those of Schedule, of Rules and ExtraTiers, ascending. With a Jitter, the lanes of
// Schedule and of Rules are among them. Where TiersWait, one of 1s is among them, for requested delays, if there are tiers below 1s and the
// next longer one is more than 20 times as long, or there is none.
func (c *TieredRetryConfig) Tiers() []backoff.Tier {
	all := slices.Concat(c.plainTiers(), backoff.Schedule(c.lanes()).Tiers())
	slices.Sort(all)
	return slices.Compact(all)
}

// plainTiers are Tiers without Jitter.
func (c *TieredRetryConfig) plainTiers() []backoff.Tier {
	tiers := backoff.Schedule(unionOf(c.Schedule, c.Rules, c.ExtraTiers)).Tiers()
	at, found := slices.BinarySearch(tiers, roundTier)
	if !c.TiersWait || found || at == 0 || at < len(tiers) && !tooManyRounds(time.Duration(tiers[at]), tiers[at-1]) {
		return tiers
	}
	return slices.Insert(tiers, at, roundTier)
}

const (
	// roundTier is added to tiers that are shorter, so that a message with a long delay is published about once a second.
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
	if c.Jitter == 0 {
		return nil
	}
	for _, tier := range backoff.Schedule(unionOf(c.Schedule, c.Rules, nil)).Tiers() {
		lanes = append(lanes, backoff.Lanes(time.Duration(tier), c.Jitter)...)
	}
	return lanes
}

// longestDelay is the longest delay of Schedule and Rules.
func (c *TieredRetryConfig) longestDelay() (longest time.Duration) {
	for _, delay := range unionOf(c.Schedule, c.Rules, nil) {
		longest = max(longest, delay)
	}
	for _, rule := range c.Rules {
		longest = max(longest, rule.Then.Delay)
	}
	return longest
}

// ValidateRules reports the faults of Rules, ExtraTiers and Jitter, joined. Validate reports them, too.
func (c *TieredRetryConfig) ValidateRules() error {
	var faults []error
	if !(c.Jitter >= 0 && c.Jitter <= 1) { // neither holds for NaN
		faults = append(faults, fmt.Errorf("Jitter is %v: it must be from 0 (none) to 1; 0.2 makes a delay of 5s one of 5s to 6s", c.Jitter))
	}
	for i, rule := range c.Rules {
		if err := rule.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("Rules[%d] (%q): %w", i, rule.Name, err))
		}
	}
	if len(c.ExtraTiers) > 0 {
		if err := backoff.Schedule(c.ExtraTiers).Validate(); err != nil {
			faults = append(faults, fmt.Errorf("ExtraTiers: %w", err))
		}
	}
	return errors.Join(faults...)
}

// policy returns what decisions depend on.
func (c *TieredRetryConfig) policy() policy {
	p := policy{schedule: c.Schedule, tiers: c.plainTiers(), jitter: c.Jitter, tiersWait: c.TiersWait, maxAge: c.MaxAge, maxDelay: c.MaxDelay}
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
		fault("Publisher is nil: give the middleware a publisher that no handler uses, for RabbitMQ the one of Builder.NewPublisher")
	}
	if err := c.Schedule.Validate(); err != nil {
		fault("Schedule: %w", err)
	}
	if err := c.ValidateRules(); err != nil {
		faults = append(faults, err)
	}
	if c.MaxAgeFrom != nil && c.MaxAge == 0 {
		fault("MaxAgeFrom is set, but MaxAge is 0: set both")
	}
	if c.Breaker != nil {
		if err := c.Breaker.Validate(); err != nil {
			fault("Breaker: %w", err)
		}
	}
	undeclared := func(tier backoff.Tier) bool {
		return len(c.DeclaredTiers) > 0 && !slices.Contains(c.DeclaredTiers, tier)
	}
	for _, tier := range c.plainTiers() {
		if undeclared(tier) {
			fault("Schedule, Rules or ExtraTiers have the tier %v, which is not declared (declared: %v): give this schedule to the builder or the relay that made the configuration",
				tier, c.DeclaredTiers)
		}
	}
	if lanes := backoff.Schedule(c.lanes()).Tiers(); slices.ContainsFunc(lanes, undeclared) {
		fault("Jitter is %v and needs the tiers %v, which are not all declared (declared: %v): give the Jitter to the builder, or the tiers to "+
			"AddSchedule of the relay, before it makes the configuration", c.Jitter, lanes, c.DeclaredTiers)
	}
	if c.GenerateRetryDestination == nil {
		fault("GenerateRetryDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, Relay.TieredRetryConfig for other Pub/Subs")
	}
	if c.GenerateDeadLetterDestination == nil {
		fault("GenerateDeadLetterDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, Relay.TieredRetryConfig for other Pub/Subs")
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"PublishTimeout", c.PublishTimeout}, {"MaxHold", c.MaxHold}, {"MaxAge", c.MaxAge}} {
		if d.value < 0 {
			fault("%s is %v: it must be 0 (the default) or more", d.field, d.value)
		}
	}
	if longest := c.longestDelay(); c.MaxDelay != 0 && (c.MaxDelay < longest || c.MaxDelay > backoff.MaxDelay) {
		fault("MaxDelay is %v: it must be 0 (the default), or from %v, the longest delay of Schedule and Rules, to %v", c.MaxDelay, longest, backoff.MaxDelay)
	}
	return errors.Join(faults...)
}
