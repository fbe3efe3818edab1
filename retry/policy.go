package retry

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/faults"
)

// Policy is everything that decides about the failures of a handler. A connection has one, and a handler uses it as a
// whole, or has one of its own. A zero field has its documented default, which is none where nothing else is said.
// Functions must be safe for concurrent use.
type Policy struct {
	// Schedule is the delay before each retry. Required. Its distinct delays are the tiers.
	Schedule backoff.Schedule

	// Rules decide about failures of one kind, in order: the first one that matches. Where none matches, the error
	// itself decides (backoff.Permanent, backoff.RetryAfter), and then Schedule. The tiers of their schedules are
	// declared, too.
	Rules []Rule

	// Jitter spreads the retries of messages that have failed together: each delay d of Schedule, and of a RetryWith
	// rule, becomes a random one from d to d+d*Jitter, never a shorter one. On RabbitMQ, the delay is one of the lanes
	// of d, at most eight: d itself, and d with one to seven eighths of d*Jitter, in whole milliseconds. A requested
	// delay is not changed. MaxAge counts the delay that was chosen. At most 1. With a Jitter, each tier of a schedule
	// has eight queues or topics.
	Jitter float64

	// ExtraTiers are tiers that no schedule uses. A requested delay waits on the longest tier that is not above it,
	// then on the longest that is not above the rest, and so on: more tiers make fewer rounds. See backoff.Ladder. The
	// default is none, and with a TierGroup on RabbitMQ backoff.Ladder(time.Second, 12 days). A group whose work queues
	// need no further tier names a delay of its schedule. A wait takes at most 20 rounds on a tier below a second, else
	// one of 1s that the library also declares. A shortest tier below 50 ms can make a message late by up to a second.
	ExtraTiers []time.Duration

	// TierGroup is the name of a group of work queues that share their tiers. It is for hundreds of quiet work queues,
	// because one shared tier brings messages back at 0.36 to 0.5 of the rate of tiers of each queue. By default the
	// tiers of a work queue are its own. Only RabbitMQ has it; the other backends have one set of tiers for all topics,
	// or none, and refuse it.
	TierGroup string

	// MaxAge is how old a message may be, from its first failure on, or from its first arrival if it had to wait then
	// for a requested delay. An older one, and one that would be older when its wait is over, is dead-lettered as
	// expired. The times are those of the hosts: an hour of difference between two clocks is an hour of age. By default
	// there is no limit.
	MaxAge time.Duration

	// MaxAgeFrom returns when a message was sent, for example from its metadata. MaxAge then holds from that time, too.
	// A zero time is not known. It is called for every message.
	MaxAgeFrom func(*message.Message) time.Time

	// MaxDelay is the longest requested delay: of backoff.RetryAfter, of the metadata of Watermill's components/delay,
	// and of what remains of it in the failure record. Any publisher can set the last two. A longer delay is cut, and
	// the first cut is logged. The default is 30 days, or the longest delay of Schedule, Rules and ExtraTiers if that
	// is longer. It must not be below the longest delay of Schedule and Rules, and not above backoff.MaxDelay, ten
	// years.
	MaxDelay time.Duration

	// Breaker pauses a handler while most of its messages fail. Nil: only a rule with Pause, and an open circuit
	// breaker of Watermill inside, pause it.
	Breaker *Breaker

	// PublishTimeout is the deadline of one attempt to publish a copy. The default is 30 seconds. It also holds after
	// the message's own context has ended, so that a handler's timeout does not lose the message.
	PublishTimeout time.Duration

	// MaxHold is how long a message is held, with its handler's goroutine, while its copy cannot be published. It may
	// last one PublishTimeout longer. After it the message is nacked, with the handler's error and the publisher's. The
	// default is 10 minutes. It must stay below the broker's consumer timeout (RabbitMQ: 30 minutes by default).
	MaxHold time.Duration

	// RedactReason changes the text of an error before it is recorded in the message and logged, to keep secrets out of
	// them. It gets the text, cut to 64 KiB of valid UTF-8, and the error. What it returns is cut to 1 KiB. Where it
	// returns an empty text or panics, only the error's type is recorded. It also gets the error with which the
	// publisher refuses a dead letter, for Record.LeftOff. The router itself still logs the error of a message that is
	// given back because its copy could not be published.
	RedactReason func(reason string, err error) string

	// DeepCopy gives the handler copies of payload and metadata, for handlers that write into the payload's bytes or
	// the metadata's map. Handlers that replace them need no copy. It costs two allocations for every message.
	DeepCopy bool
}

// longestDelay is the longest delay of Schedule and Rules.
func (p *Policy) longestDelay() (longest time.Duration) {
	for _, delay := range p.Schedule {
		longest = max(longest, delay)
	}
	for _, rule := range p.Rules {
		longest = max(longest, rule.Then.Delay)
		for _, delay := range rule.Then.Schedule {
			longest = max(longest, delay)
		}
	}
	return longest
}

// asTiers names delays of a schedule that are no retries.
var asTiers = strings.NewReplacer("backoff: retry ", "tier ", "backoff: retries ", "tiers ", " retries: ", " tiers: ")

// Validate reports all faults, joined. Zero fields have their defaults.
func (p Policy) Validate() error {
	var all []error
	fault := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }

	all = append(all, faults.Of("Schedule", p.Schedule.Validate()))
	for i, rule := range p.Rules {
		all = append(all, faults.In(fmt.Sprintf("Rules[%d]", i), rule.validate()))
	}
	delaysAreRight := errors.Join(all...) == nil
	if !(p.Jitter >= 0 && p.Jitter <= 1) { // neither holds for NaN
		fault("Jitter is %v: it must be from 0 (none) to 1; 0.2 makes a delay of 5s one of 5s to 6s", p.Jitter)
	}
	if len(p.ExtraTiers) > 0 {
		if err := backoff.Schedule(p.ExtraTiers).Validate(); err != nil {
			all = append(all, faults.Of("ExtraTiers", errors.New(asTiers.Replace(err.Error()))))
		}
	}
	if p.MaxAgeFrom != nil && p.MaxAge == 0 {
		fault("MaxAgeFrom is set, but MaxAge is 0: set both")
	}
	if p.Breaker != nil {
		all = append(all, faults.In("Breaker", p.Breaker.validate()))
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"PublishTimeout", p.PublishTimeout}, {"MaxHold", p.MaxHold}, {"MaxAge", p.MaxAge}} {
		if d.value < 0 {
			fault("%s is %v: it must be 0 (the default) or more", d.field, d.value)
		}
	}
	longest := p.longestDelay()
	if delaysAreRight && p.MaxDelay != 0 && (p.MaxDelay < longest || p.MaxDelay > backoff.MaxDelay) {
		fault("MaxDelay is %v: it must be 0 (the default), or from %v, the longest delay of Schedule and Rules, to %v",
			p.MaxDelay, longest, backoff.MaxDelay)
	}
	return errors.Join(all...)
}
