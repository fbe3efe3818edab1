package retry

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/faults"
)

// Rule decides about failures of one kind. Policy.Rules are tried in order, and the first one that matches decides. A
// rule also decides about errors that request something by themselves, such as those of backoff.Permanent.
type Rule struct {
	// Name is used in logs and in Event.Rule. Optional.
	Name string

	// If reports whether the rule matches. Required: Is, As or a function. The record is that with which the message
	// came: it does not count the present failure. A panic in If counts as no match. It must be safe for concurrent
	// use.
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

// Action is what follows when a Rule matches. Make one with RetryWith, RetryAfter, Snooze, DeadLetter, Discard,
// GiveBack or Pause. The zero value is none.
type Action struct {
	Outcome    Outcome          // Retried, Snoozed, DeadLettered, Discarded or GivenBack
	Schedule   backoff.Schedule // the schedule of RetryWith, else nil
	Delay      time.Duration    // the delay of RetryAfter, Snooze and Pause
	DeadReason DeadReason       // the reason of DeadLetter
	Pause      time.Duration    // the pause of Pause
}

// RetryWith retries by another schedule. The count of failures is the same for all rules: after the second failure of a
// message, the second delay of the schedule follows.
func RetryWith(schedule backoff.Schedule) Action {
	return Action{Outcome: Retried, Schedule: append(backoff.Schedule{}, schedule...)}
}

// RetryAfter retries after a delay in place of the schedule's. It counts a failure, and the number of retries stays the
// schedule's.
func RetryAfter(delay time.Duration) Action { return Action{Outcome: Retried, Delay: delay} }

// Snooze retries later and counts no failure, for rate limits and maintenance. The delay is the one that the error
// requests (see backoff.RetryAfter), or this one where it requests none. A message that always fails so is snoozed
// without end, unless there is a MaxAge.
func Snooze(delay time.Duration) Action { return Action{Outcome: Snoozed, Delay: delay} }

// DeadLetter dead-letters the message at once, with a dead reason of the app's own. Those of the library and of the
// broker are refused.
func DeadLetter(reason DeadReason) Action { return Action{Outcome: DeadLettered, DeadReason: reason} }

// Discard acknowledges the message without a copy. It is logged.
func Discard() Action { return Action{Outcome: Discarded} }

// GiveBack nacks the message after a second, and counts no failure. The broker delivers it again, and counts it against
// the queue's delivery limit if it has one.
func GiveBack() Action { return Action{Outcome: GivenBack} }

// Pause pauses the handler: it takes no new messages for this long. Then one message at a time decides whether it goes
// on, as after a pause of Breaker. The message itself is snoozed for as long.
func Pause(delay time.Duration) Action { return Action{Outcome: Snoozed, Delay: delay, Pause: delay} }

const maxDeadReason = 255

// brokersReasons are those of RabbitMQ's x-death header, and that of package relay.
var brokersReasons = []DeadReason{"rejected", "expired", "maxlen", "delivery_limit", "foreign"}

func (a Action) validate() error {
	switch {
	case a.Outcome == "":
		return errors.New("Then is not set: use RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack or Pause")
	case a.Outcome == Retried && a.Schedule != nil:
		return faults.Of("Then: RetryWith", a.Schedule.Validate())
	case a.Outcome == Retried, a.Outcome == Snoozed:
		if a.Delay <= 0 || a.Delay > backoff.MaxDelay {
			return fmt.Errorf("Then: the delay is %v: it must be more than 0 and at most %v", a.Delay, backoff.MaxDelay)
		}
	case a.Outcome == DeadLettered:
		if a.DeadReason == "" || len(a.DeadReason) > maxDeadReason {
			return fmt.Errorf("Then: the dead reason has %d bytes: it must have between 1 and %d", len(a.DeadReason),
				maxDeadReason)
		}
		if slices.Contains(DeadReasons(), a.DeadReason) || slices.Contains(brokersReasons, a.DeadReason) {
			return fmt.Errorf("Then: the dead reason %q is one of the library or of the broker: use a word of your own",
				a.DeadReason)
		}
	case a.Outcome != Discarded && a.Outcome != GivenBack:
		return fmt.Errorf("Then has the outcome %q: use RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack "+
			"or Pause", a.Outcome)
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
