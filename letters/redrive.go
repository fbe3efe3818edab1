package letters

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Redrive is the options of a redrive. The zero value sends all letters that were there when it began, as fast as the
// broker takes them.
type Redrive struct {
	// Filter selects the letters.
	Filter Filter
	// Limit is how many letters are sent at most. The default is no limit.
	Limit int
	// Rate is how many letters are sent in a second at most. The default is no limit.
	Rate float64
	// Canary is how many letters are sent first. Then Redrive watches them, and goes on only if none of them dies
	// again. The default is none. Letters that are not sent do not count.
	Canary int
	// CanaryWait is how long they are watched. The default is as long as they took to die the last time, from their
	// first failure to their last, plus 5% and 10 seconds: at most an hour.
	CanaryWait time.Duration
	// MaxRedead is the share of the letters sent, between 0 and 1, that may die again before Redrive stops. It is
	// looked at when 20 have been sent. The default is no look.
	MaxRedead float64
	// DryRun looks at all letters and sends none.
	DryRun bool
	// To is the work queue or topic that all letters are sent to, in place of their Target.
	To string
	// By is who redrives, for the history of each letter. The default is user@host of this process.
	By string
	// Note is for the history of each letter.
	Note string
	// Again makes an Inbox of package inbox call the handler once more, where the message was handled with success
	// before. The default is that it is a duplicate. A handler without an Inbox is called in both cases.
	Again bool
	// Progress is called after every change, at most ten times a second, and once at the end. It is never called by
	// two goroutines at the same time. It must not block.
	Progress func(Progress)
}

// Validate reports all faults of the options.
func (r Redrive) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("Redrive."+format, args...)) }
	if r.Limit < 0 {
		fault("Limit is %d: it must not be negative (0 is no limit)", r.Limit)
	}
	if r.Rate < 0 || math.IsNaN(r.Rate) || math.IsInf(r.Rate, 0) {
		fault("Rate is %v: it must be a number of letters a second, not negative (0 is no limit)", r.Rate)
	}
	if r.Canary < 0 {
		fault("Canary is %d: it must not be negative (0 is none)", r.Canary)
	}
	if r.CanaryWait < 0 {
		fault("CanaryWait is %v: it must not be negative", r.CanaryWait)
	}
	if r.CanaryWait > 0 && r.Canary == 0 {
		fault("CanaryWait is %v: it needs Redrive.Canary, the number of letters to watch", r.CanaryWait)
	}
	if r.MaxRedead < 0 || r.MaxRedead > 1 || math.IsNaN(r.MaxRedead) {
		fault("MaxRedead is %v: it must be a share between 0 and 1", r.MaxRedead)
	}
	return errors.Join(append(faults, r.Filter.Validate())...)
}

// Discard is the options of a discard. The zero value removes all letters that were there when it began.
type Discard struct {
	// Filter selects the letters.
	Filter Filter
	// Limit is how many letters are removed at most. The default is no limit.
	Limit int
	// DryRun looks at all letters and removes none.
	DryRun bool
	// Export gets each letter as a line of JSON before it is removed, as deadletter.Store.Export writes it. If it has
	// a method Sync() error, as *os.File has, that is called before letters are removed. An error ends the discard.
	// After a lost connection, letters can be there twice. The default is none.
	Export io.Writer
	// Progress is as in Redrive.
	Progress func(Progress)
}

// Validate reports all faults of the options.
func (d Discard) Validate() error {
	var fault error
	if d.Limit < 0 {
		fault = fmt.Errorf("Discard.Limit is %d: it must not be negative (0 is no limit)", d.Limit)
	}
	return errors.Join(fault, d.Filter.Validate())
}

// Phase is what a redrive or discard is doing.
type Phase string

// The phases, in their order.
const (
	Looking  Phase = "looking"  // goes through the letters
	Canary   Phase = "canary"   // sends the canary
	Watching Phase = "watching" // waits whether the canary dies again
	Waiting  Phase = "waiting"  // the broker is away or blocks publishers: goes on when it is back
	Ended    Phase = "ended"
)

// Progress is how far a redrive or discard is.
type Progress struct {
	Summary
	Phase   Phase         `json:"phase"`
	Elapsed time.Duration `json:"elapsed"`
	// Until is when the canary is watched until. Zero in other phases.
	Until time.Time `json:"until,omitzero"`
	// Err is why the phase is Waiting.
	Err error `json:"-"`
}

// Summary is what became of the letters that were in the queue at the start: Total is the sum of Done, Other, Kept
// and Unseen.
type Summary struct {
	Total  int `json:"total"`  // in the queue at the start
	Done   int `json:"done"`   // sent or discarded, and removed; with DryRun those that would be
	Other  int `json:"other"`  // not selected by the filter: they stay
	Kept   int `json:"kept"`   // selected and not sent: they stay
	Unseen int `json:"unseen"` // not looked at, because of Limit or because the call ended early: they stay

	Redead int `json:"redead"` // how many of Done died again until the end of the call, as far as it looked
	// Doubtful is how many sends had no confirm. Those letters stay and may be sent again, so each may be a
	// duplicate.
	Doubtful int `json:"doubtful"`
}

// String returns the summary as one line.
func (s Summary) String() string {
	return fmt.Sprintf("total=%d done=%d other=%d kept=%d unseen=%d redead=%d doubtful=%d", s.Total, s.Done, s.Other,
		s.Kept, s.Unseen, s.Redead, s.Doubtful)
}

// Left estimates how long the rest takes, at the rate so far. It is 0 where nothing is known.
func (p Progress) Left() time.Duration {
	seen := p.Done + p.Other + p.Kept
	if seen == 0 || p.Phase == Ended {
		return 0
	}
	return time.Duration(float64(p.Elapsed) / float64(seen) * float64(p.Total-seen)).Round(time.Second)
}

// PerSecond is the number of letters done in a second so far.
func (p Progress) PerSecond() float64 {
	return float64(p.Done) / cmp.Or(p.Elapsed, 1).Seconds()
}
