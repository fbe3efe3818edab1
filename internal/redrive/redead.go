package redrive

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// redeadPause is how often a run looks for letters that died again.
	redeadPause = time.Second

	// fewestForShare is how many letters must have been sent before Redrive.MaxRedead is compared with a share.
	fewestForShare = 20

	// shortestWatch and longestWatch bound how long a canary is watched by default.
	shortestWatch = 10 * time.Second
	longestWatch  = time.Hour
)

// isCanary reports whether the letters that are sent now are watched.
func (r *Run) isCanary() bool { return r.Options.Canary > 0 && !r.lived && !r.Options.DryRun }

// watchCanary watches the canary when so many of its letters were sent. It waits for the letters in flight if they
// decide.
func (r *Run) watchCanary(ctx context.Context, s Source, letterCount int) error {
	if !r.isCanary() {
		return nil
	}
	r.enter(letters.Canary, time.Time{})
	sent := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.canary)
	}
	if sent()+int(r.flights.flying.Load()) < letterCount {
		return nil
	}
	if r.flights.Wait(); sent() < letterCount || len(r.failed) > 0 { // letters that stay are no part of the canary
		return nil
	}
	return r.watch(ctx, s)
}

// watch waits until the canary has had the time to die again, and returns letters.ErrRedead if one letter did.
func (r *Run) watch(ctx context.Context, s Source) error {
	if err := r.settle(s); err != nil {
		return err
	}
	wait := cmp.Or(r.Options.CanaryWait, watchFor(r.canary))
	// after a lost connection the rest is enough: the broker closes a channel that has letters for too long
	if r.lives.IsZero() {
		r.lives = time.Now().Add(wait)
	}
	r.enter(letters.Watching, r.lives)
	pause := min(redeadPause, max(wait/4, 10*time.Millisecond))
	last, alone := time.Now(), time.Time{} // the last look for consumers, and the first of those that have missed one
	shown := false                         // the last look has shown whether there are consumers
	for over := false; !over; {
		if err := pauses.Sleep(ctx, pause); err != nil {
			return err
		}
		if over = !time.Now().Before(r.lives); !over && !r.due() {
			continue
		}
		began := time.Now()
		fault, known := s.Unconsumed(ctx, r.targets)
		if err := r.count(ctx, s, 1); err != nil { // what died before its consumer went away counts
			return err
		}
		r.took = r.looked.Sub(began)
		if redead := r.summary.Redead; redead > 0 {
			return fmt.Errorf("%w: %d of the canary of %d; repair the cause first, then redrive again",
				letters.ErrRedead, redead, len(r.canary))
		}
		missed := began.Sub(last)
		switch last = began; {
		case fault == "":
			alone, shown = time.Time{}, known
			continue
		case alone.IsZero():
			alone = began
		case began.Sub(alone) >= consumerPatience:
			return unconsumed(fault, "So it is not known whether the canary was handled. Resume or start it, and redrive again")
		}
		r.lives, over = r.lives.Add(missed), false
		r.enter(letters.Watching, r.lives)
	}
	r.lived, r.canary = true, nil
	r.Change(func(s *letters.Summary) { s.CanaryUnknown = !shown })
	r.enter(letters.Looking, time.Time{})
	return nil
}

// watchFor is how long a canary is watched by default: as long as its letters took to die the last time, plus 5% and
// 10 seconds.
func watchFor(canary []*letters.Letter) time.Duration {
	var longest time.Duration
	for _, l := range canary {
		if first, last := l.Record.FirstFailedAt, l.Record.LastFailedAt; !first.IsZero() && last.After(first) {
			longest = min(max(longest, last.Sub(first)), longestWatch)
		}
	}
	return min(longest+longest/20+shortestWatch, longestWatch)
}

// due reports whether it is time for another look: once a second, and less often where looks take long.
func (r *Run) due() bool { return time.Since(r.looked) >= max(redeadPause, 10*r.took) }

// check returns letters.ErrRedead when more than the share of MaxRedead have died again.
func (r *Run) check(ctx context.Context, s Source) error {
	if r.Options.MaxRedead == 0 || r.Options.DryRun || !r.due() {
		return nil
	}
	sent := r.copies()
	if sent < fewestForShare {
		return nil
	}
	return r.look(ctx, s, int(r.Options.MaxRedead*float64(sent))+1)
}

// look counts the letters that have died again, if so many can have, and compares them with MaxRedead.
func (r *Run) look(ctx context.Context, s Source, enough int) error {
	if err := r.count(ctx, s, enough); err != nil {
		return err
	}
	if sent := r.copies(); r.tooMany(sent, r.summary.Redead) {
		return fmt.Errorf("%w: %d of %d, more than the share of %v; repair the cause first, then redrive again",
			letters.ErrRedead, r.summary.Redead, sent, r.Options.MaxRedead)
	}
	return nil
}

// tooMany reports whether more than the share of the letters sent have died again.
func (r *Run) tooMany(sent, redead int) bool {
	share := r.Options.MaxRedead
	return share > 0 && sent >= fewestForShare && float64(redead) > share*float64(sent)
}

// count counts the letters that have died again.
func (r *Run) count(ctx context.Context, s Source, enough int) error {
	began := time.Now()
	redead, err := s.Redead(ctx, enough)
	if err != nil {
		return err
	}
	r.Change(func(s *letters.Summary) { s.Redead = max(s.Redead, redead) })
	r.looked = time.Now()
	r.took = r.looked.Sub(began)
	return nil
}

// copies is how many copies there can be: those of letters in flight and the doubtful ones can have died again, too.
func (r *Run) copies() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.summary.Done + r.summary.Doubtful + int(r.flights.flying.Load())
}
