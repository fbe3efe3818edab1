package middleware

import (
	"errors"
	"fmt"
	"time"
)

// Breaker configures when a handler pauses: it takes no new messages while most of them fail, because what it depends on is down. The
// messages stay in the work queue, in order and uncounted. After a pause one message is let through. If it succeeds, the handler goes
// on with 1, 2, 4 and more messages in flight; if it fails, the next pause is twice as long. The zero value has all defaults.
type Breaker struct {
	// Ratio is the share of failures from which on the handler pauses. The default is 0.5. More than 0 and at most 1.
	Ratio float64

	// Least is how many messages there must be in a Window before Ratio counts. The default is 20.
	Least int

	// Window is how long failures and successes are counted together. The default is 10 seconds.
	Window time.Duration

	// Pause is the first pause. It doubles with each failure that follows, up to MaxPause, and is shortened at random by up to a
	// quarter, so that instances do not try at the same moment. The defaults are 1 second and 30 seconds.
	Pause, MaxPause time.Duration

	// Failed reports whether an error is a sign that others fail, too. The default is every error but those of backoff.Permanent and
	// those that a rule dead-letters or discards. It must be safe for concurrent use. Optional.
	Failed func(error) bool
}

// Validate reports all faults, joined. Zero fields are valid: they have defaults.
func (b Breaker) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if b.Ratio < 0 || b.Ratio > 1 || b.Ratio != b.Ratio {
		fault("Ratio is %v: it must be more than 0 and at most 1, or 0 for the default", b.Ratio)
	}
	if b.Least < 0 {
		fault("Least is %d: it must be 0 (the default) or more", b.Least)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"Window", b.Window}, {"Pause", b.Pause}, {"MaxPause", b.MaxPause}} {
		if d.value < 0 {
			fault("%s is %v: it must be 0 (the default) or more", d.field, d.value)
		}
	}
	if b.Pause > 0 && b.MaxPause > 0 && b.Pause > b.MaxPause {
		fault("Pause is %v: it must be at most MaxPause, %v", b.Pause, b.MaxPause)
	}
	return errors.Join(faults...)
}
