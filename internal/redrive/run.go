// Package redrive is the engine of every redrive and discard: it decides about each letter, sends a canary first,
// keeps to the rate and the limit, and counts. A backend gives it the letters as a Source.
package redrive

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Source is one look at the letters that were in a queue when a run began.
type Source interface {
	// Next returns the next letter, or nil when all were seen.
	Next(ctx context.Context) (Item, error)
	// Redead returns how many letters of the run have died again. It may return the last count where fewer than
	// enough can have died since.
	Redead(ctx context.Context, enough int) (int, error)
	// Settle waits until the removals so far cannot be undone.
	Settle() error
	// Unconsumed returns a clause about the first target that no process consumes, such as `"orders" has no consumer`,
	// else "". known is false where the backend does not show it for each target.
	Unconsumed(ctx context.Context, targets []string) (fault string, known bool)
}

// An Item is a letter of a Source. It is either kept, sent or removed.
type Item interface {
	Letter() *letters.Letter
	// Keep leaves the letter where it is.
	Keep(ctx context.Context) error
	// Target is where Send sends the letter. It may be empty.
	Target() string
	// Find returns an error that wraps letters.ErrNoTarget where the target does not exist. Any other error ends the
	// run.
	Find(ctx context.Context) error
	// Send publishes the letter and removes it. doubtful counts the sends without a confirm. A letter whose error
	// wraps letters.ErrNoTarget or Stays stays, and the run goes on. Any other error ends the run.
	Send(ctx context.Context) (doubtful int, err error)
	// AppendLine appends the letter as a line of JSON.
	AppendLine(b []byte) ([]byte, error)
	// Remove removes the letter for good.
	Remove(ctx context.Context) error
}

// Stays is the error of a letter that stays, while the run goes on.
type Stays struct{ Err error }

func (s *Stays) Error() string { return s.Err.Error() }
func (s *Stays) Unwrap() error { return s.Err }

// progressPause is how often Progress is called at most.
const progressPause = 100 * time.Millisecond

// A Run is one redrive, discard or import. After a lost connection it goes on with another pass.
type Run struct {
	ID      string          // the id of the run, in the history of what it sends
	Options letters.Redrive // the options; of a discard, those that it has in common with a redrive
	discard *letters.Discard
	begun   time.Time
	flights *Flights

	mu       sync.Mutex
	summary  letters.Summary
	counted  bool // summary.Total is known
	phase    letters.Phase
	until    time.Time
	away     error
	reported time.Time
	unsure   int // how many of summary.Done were removed since the last Settle
	maybe    int // not of summary.Done: removed on lost connections, and the broker may not have read that

	failed  chan error        // the first error that ends the run
	next    time.Time         // when the next letter may be sent, with a Rate
	gone    map[string]error  // the error of each target: nil for one that is there
	stays   error             // the first error of a letter that stays, while the run goes on
	canary  []*letters.Letter // letters that were sent
	targets []string          // where the letters of the canary are sent to
	lives   time.Time         // when the canary has lived, if none of it dies before
	lived   bool              // the canary has lived
	looked  time.Time         // the end of the last look for letters that died again
	took    time.Duration     // duration of that look
}

// New returns a redrive that has at most so many letters in flight.
func New(options letters.Redrive, inFlight int) *Run {
	options.By = cmp.Or(options.By, userAtHost())
	return &Run{
		ID: rand.Text()[:12], Options: options, begun: time.Now(), phase: letters.Looking,
		flights: NewFlights(inFlight),
		failed:  make(chan error, 1), gone: map[string]error{},
	}
}

// NewDiscard returns a discard.
func NewDiscard(options letters.Discard) *Run {
	r := New(letters.Redrive{
		Filter: options.Filter, Limit: options.Limit, DryRun: options.DryRun, Progress: options.Progress,
	}, 1)
	r.discard = &options
	return r
}

// Validate reports all faults of the options.
func (r *Run) Validate() error {
	if r.discard != nil {
		return r.discard.Validate()
	}
	return r.Options.Validate()
}

// Entry is what the history of a letter has of this run.
func (r *Run) Entry(record retry.Record) letters.PastRedrive {
	return letters.PastRedrive{
		Run: r.ID, At: time.Now(), By: r.Options.By, Note: r.Options.Note, Again: r.Options.Again,
		FailedAt: record.FirstFailedAt,
		Failures: record.Failures, DeadReason: record.DeadReason, Reason: record.Reason,
	}
}

// Sent reports whether this run was the last one that sent a letter: then the letter has died again.
func (r *Run) Sent(l *letters.Letter) bool {
	history := l.Redriven.Redrives
	return len(history) > 0 && history[len(history)-1].Run == r.ID
}

// Change changes the summary, and reports it unless that was done just before.
func (r *Run) Change(set func(*letters.Summary)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set(&r.summary)
	r.report(false)
}

// Wait reports that the broker is away, or with nil that it is back.
func (r *Run) Wait(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if (r.away == nil) != (err == nil) {
		r.away = err
		r.report(true)
	}
}

// enter begins a phase, or moves its end. until is zero but for letters.Watching.
func (r *Run) enter(phase letters.Phase, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != phase || !r.until.Equal(until) {
		r.phase, r.until = phase, until
		r.report(true)
	}
}

func (r *Run) report(always bool) {
	now := time.Now()
	if r.Options.Progress == nil || !always && now.Sub(r.reported) < progressPause {
		return
	}
	r.reported = now
	p := letters.Progress{Summary: r.adding(), Phase: r.phase, Elapsed: now.Sub(r.begun), Until: r.until}
	if r.away != nil {
		p.Phase, p.Err = letters.Waiting, r.away
	}
	r.Options.Progress(p)
}

// adding returns the summary with the letters that were not looked at.
func (r *Run) adding() letters.Summary {
	summary := r.summary
	seen := summary.Done + summary.Other + summary.Kept
	summary.Total = max(summary.Total, seen)
	summary.Unseen = summary.Total - seen
	return summary
}

// Begin begins another pass. total is how many letters there are: that of the first pass counts.
func (r *Run) Begin(total int) {
	r.Change(func(s *letters.Summary) {
		if !r.counted {
			s.Total, r.counted = total, true
		}
		s.Other, s.Kept, r.away = 0, 0, nil // these letters are looked at again
		if r.Options.DryRun {
			s.Done = 0
		}
	})
}

// Counted reports whether a pass has begun.
func (r *Run) Counted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counted
}

// Rest is how many letters are left of those that were there at the start. most is -1 before the first pass.
func (r *Run) Rest() (least, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.counted {
		return 0, -1
	}
	most = r.summary.Total
	if !r.Options.DryRun {
		most -= r.summary.Done
	}
	return most - r.maybe, most
}

// Removed is how many letters were removed, certainly or not.
func (r *Run) Removed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.summary.Done + r.maybe
}

// Lost notes that a connection was lost: the last removals, at most so many, may be undone.
func (r *Run) Lost(most int) {
	r.Change(func(s *letters.Summary) {
		unsure := min(r.unsure, most)
		if r.discard == nil {
			s.Doubtful += unsure
		}
		s.Done, r.maybe, r.unsure = s.Done-unsure, r.maybe+unsure, 0
	})
}

// Missing notes letters that a pass has not found. It returns how many of them this run has not removed.
func (r *Run) Missing(letterCount int) (others int) {
	r.Change(func(s *letters.Summary) {
		removed := min(letterCount, r.maybe)
		s.Done, r.maybe, r.unsure = s.Done+removed, r.maybe-removed, 0
		others = letterCount - removed
	})
	return others
}

// Finish ends the run, and returns its summary and all its errors. whole: all letters were seen, and others were
// taken away meanwhile.
func (r *Run) Finish(err error, whole bool) (letters.Summary, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.until, r.away = letters.Ended, time.Time{}, nil
	if whole {
		r.summary.Total = 0
	}
	r.summary = r.adding()
	r.report(true)
	var missing []error
	for _, gone := range r.gone {
		if gone != nil {
			missing = append(missing, gone)
		}
	}
	slices.SortFunc(missing, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return r.summary, errors.Join(append([]error{err, r.stays}, missing...)...)
}
