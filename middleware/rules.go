package middleware

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sony/gobreaker"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Rule decides about failures of one kind. TieredRetryConfig.Rules are tried in order, and the first one that matches decides. A rule
// also decides about errors that request something by themselves, such as those of backoff.Permanent.
type Rule struct {
	// Name is used in logs and in Event.Rule. Optional.
	Name string

	// If reports whether the rule matches. Required: Is, As or a function. The record is that with which the message came: it does
	// not count the present failure. A panic in If counts as no match. It must be safe for concurrent use.
	If func(Record, error) bool

	// Then is what follows. Required: RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack or Pause.
	Then Action
}

// Is returns a Rule.If that matches by errors.Is.
func Is(target error) func(Record, error) bool {
	if target == nil {
		return nil // it would never match: Validate reports it
	}
	return func(_ Record, err error) bool { return errors.Is(err, target) }
}

// As returns a Rule.If that matches by errors.As.
func As[E error]() func(Record, error) bool {
	return func(_ Record, err error) bool {
		var target E
		return errors.As(err, &target)
	}
}

type actionKind int

const (
	actNone actionKind = iota
	actRetryWith
	actRetryAfter
	actSnooze
	actDeadLetter
	actDiscard
	actGiveBack
)

// Action is what follows when a Rule matches.
type Action struct {
	kind     actionKind
	schedule backoff.Schedule
	delay    time.Duration
	reason   DeadReason
	pause    time.Duration
}

// RetryWith retries by another schedule. The count of failures is the same for all rules: after the second failure of a message, the
// second delay of the schedule follows.
func RetryWith(schedule backoff.Schedule) Action {
	return Action{kind: actRetryWith, schedule: slices.Clone(schedule)}
}

// RetryAfter retries after a delay in place of the schedule's. It counts a failure, and the number of retries stays the schedule's.
func RetryAfter(delay time.Duration) Action { return Action{kind: actRetryAfter, delay: delay} }

// Snooze retries later and counts no failure, for rate limits and maintenance. The delay is the one that the error requests (see
// backoff.RetryAfter), or this one where it requests none. A message that always fails so is snoozed without end, unless there is a MaxAge.
func Snooze(delay time.Duration) Action { return Action{kind: actSnooze, delay: delay} }

// DeadLetter dead-letters the message at once, with a dead reason of the app's own. Those of the library and of the broker are refused.
func DeadLetter(reason DeadReason) Action { return Action{kind: actDeadLetter, reason: reason} }

// Discard acknowledges the message without a copy. It is logged.
func Discard() Action { return Action{kind: actDiscard} }

// GiveBack nacks the message after a second, and counts no failure. The broker delivers it again, and counts it against the queue's
// delivery limit if it has one.
func GiveBack() Action { return Action{kind: actGiveBack} }

// Pause pauses the handler: it takes no new messages for this long. Then one message at a time decides whether it goes on, as after
// a pause of Breaker. The message itself is snoozed for as long.
func Pause(delay time.Duration) Action { return Action{kind: actSnooze, delay: delay, pause: delay} }

const maxDeadReason = 255

// brokersReasons are those of RabbitMQ's x-death header, and that of package relay.
var brokersReasons = []DeadReason{"rejected", "expired", "maxlen", "delivery_limit", "foreign"}

func (a Action) validate() error {
	switch a.kind {
	case actNone:
		return errors.New("Then is not set: use RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack or Pause")
	case actRetryWith:
		if err := a.schedule.Validate(); err != nil {
			return fmt.Errorf("RetryWith: %w", err)
		}
	case actRetryAfter, actSnooze:
		if a.delay <= 0 || a.delay > backoff.MaxDelay {
			return fmt.Errorf("the delay is %v: it must be more than 0 and at most %v", a.delay, backoff.MaxDelay)
		}
	case actDeadLetter:
		if a.reason == "" || len(a.reason) > maxDeadReason {
			return fmt.Errorf("the dead reason has %d bytes: it must have between 1 and %d", len(a.reason), maxDeadReason)
		}
		if slices.Contains(DeadReasons(), a.reason) || slices.Contains(brokersReasons, a.reason) {
			return fmt.Errorf("the dead reason %q is one of the library or of the broker: use a word of your own", a.reason)
		}
	}
	return nil
}

func (r Rule) validate() error {
	err := r.Then.validate()
	if r.If == nil {
		err = errors.Join(errors.New("If is nil: use Is, As or a function of (Record, error)"), err)
	}
	return err
}

// actionFor returns the action of the first rule that matches, and the rule's name. A circuit breaker of Watermill inside, which is
// open, is a rule after all others.
func (t *TieredRetry) actionFor(record *Record, err error) (Action, string) {
	for i := range t.config.Rules {
		if rule := &t.config.Rules[i]; t.matches(rule, *record, err) {
			return rule.Then, rule.Name
		}
	}
	if ofOpenBreaker(err) {
		shortest := time.Duration(t.policy.tiers[0])
		return Action{kind: actSnooze, delay: shortest, pause: shortest}, "circuit breaker"
	}
	return Action{}, ""
}

// ofOpenBreaker reports whether a circuit breaker of Watermill has not called the handler. Some errors panic in their Unwrap method.
func ofOpenBreaker(err error) (open bool) {
	_ = call(func() { open = errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) })
	return open
}

func (t *TieredRetry) matches(rule *Rule, record Record, err error) (matched bool) {
	if panicked := call(func() { matched = rule.If(record, err) }); panicked != nil {
		t.logger.Error("Rule.If panicked, the rule does not match", panicked, nil)
	}
	return matched
}
