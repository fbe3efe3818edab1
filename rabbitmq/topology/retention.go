package topology

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/shell"
)

// Retention limits what a dead-letter queue keeps. The broker drops the oldest dead letters: they are lost. The zero
// value drops none. An existing queue cannot get other limits: its declaration is an *ArgumentConflictError, which
// names the policy that sets them.
type Retention struct {
	// MaxLength is how many dead letters the queue keeps (x-max-length, x-overflow=drop-head). 0 means no limit.
	MaxLength int

	// MaxAge is how long a dead letter stays in the queue (x-message-ttl). It is a whole number of milliseconds, at
	// most backoff.MaxDelay. 0 means no limit.
	MaxAge time.Duration
}

// String returns the limits, or "none".
func (r Retention) String() string {
	var limits []string
	if r.MaxLength > 0 {
		limits = append(limits, fmt.Sprintf("MaxLength %d", r.MaxLength))
	}
	if r.MaxAge > 0 {
		limits = append(limits, fmt.Sprintf("MaxAge %v", backoff.Tier(r.MaxAge)))
	}
	if limits == nil {
		return "none"
	}
	return strings.Join(limits, ", ")
}

func (r Retention) faults() (faults []error) {
	if r.MaxLength < 0 {
		faults = append(faults, fmt.Errorf("DeadLetters.MaxLength is %d: it must be at least 1, or 0 for no limit",
			r.MaxLength))
	}
	if r.MaxAge < 0 || r.MaxAge > backoff.MaxDelay || r.MaxAge%time.Millisecond != 0 {
		faults = append(faults, fmt.Errorf("DeadLetters.MaxAge is %v: it must be a whole number of milliseconds, at "+
			"most %v, or 0 for no limit",
			r.MaxAge, backoff.MaxDelay))
	}
	return faults
}

// policy returns the command that sets the limits of an existing queue.
func (r Retention) policy(vhost, work, queue string) string {
	var keys []string
	if r.MaxLength > 0 {
		keys = append(keys, fmt.Sprintf(`"max-length":%d`, r.MaxLength))
	}
	if r.MaxAge > 0 {
		keys = append(keys, fmt.Sprintf(`"message-ttl":%d`, r.MaxAge.Milliseconds()))
	}
	return fmt.Sprintf("rabbitmqctl set_policy -p %s --apply-to queues %s %s '{%s}'", shell.Quote(vhost),
		shell.Quote("dead letters of "+work), shell.Quote("^"+regexp.QuoteMeta(queue)+"$"), strings.Join(keys, ","))
}

// advise adds to a conflict of the dead-letter queue what to do about its limits.
func (t Topology) advise(err error) error {
	var conflict *ArgumentConflictError
	if !errors.As(err, &conflict) || conflict.Object != t.DeadLetterQueue() {
		return err
	}
	switch conflict.Argument {
	case queuearg.MaxLength, queuearg.MessageTTL, queuearg.Overflow:
	default:
		return err
	}
	conflict.Advice = "the arguments of an existing queue cannot be changed: configure the DeadLetters that it was " +
		"declared with"
	if limits := t.config.DeadLetters; limits != (Retention{}) {
		conflict.Advice += ", and set a policy for lower limits: " + limits.policy(refusal.VhostIn(conflict.Cause),
			t.WorkQueue.Name, conflict.Object)
	}
	return err
}
