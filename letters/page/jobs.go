package page

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/letters"
)

const (
	maxRunning    = 8                // redrives and discards that run at the same time
	maxEnded      = 20               // that are kept when they have ended
	maxPlans      = 100              // that wait for their confirmation
	planAge       = 15 * time.Minute // after which the number of letters must be counted again
	verbRedrive   = "Redrive"
	verbDiscard   = "Discard"
	phaseStopping = letters.Phase("stopping")
)

var (
	errTooMany = errors.New("too many redrives and discards run at the same time")
	errExpired = errors.New("the confirmation is unknown or too old")
)

// plan is a redrive or discard that waits for its confirmation. It is kept on the server, so that what runs is what
// was shown, and runs once.
type plan struct {
	selection
	ID       string
	Verb     string
	Count    int  // letters that it would send or remove
	AtLeast  bool // the count has ended early
	Total    int  // letters that the count has looked at
	Redrive  letters.Redrive
	By       string
	prepared time.Time
}

// runFunc runs the redrive or discard of a plan, and reports its progress.
type runFunc = func(context.Context, plan, func(letters.Progress)) (letters.Summary, error)

// job is a plan that was confirmed.
type job struct {
	plan
	started time.Time
	cancel  context.CancelFunc

	lock     sync.Mutex
	progress letters.Progress
	stopped  bool // on the page
	ended    time.Time
	err      error
}

// jobs are the redrives and discards of a page.
type jobs struct {
	ctx    context.Context
	cancel context.CancelFunc
	logger watermill.LoggerAdapter

	lock   sync.Mutex
	plans  []*plan // the oldest first
	all    []*job  // the oldest first
	closed bool
	wait   sync.WaitGroup
}

// prepare keeps a plan until it is confirmed.
func (j *jobs) prepare(p *plan) {
	p.ID, p.prepared = rand.Text(), time.Now()
	j.lock.Lock()
	defer j.lock.Unlock()
	if len(j.plans) == maxPlans {
		j.plans = slices.Delete(j.plans, 0, 1)
	}
	j.plans = append(j.plans, p)
}

// start runs the plan with this ID. A plan that runs already, or did, is no error: a form can be sent twice.
func (j *jobs) start(verb, id string, run runFunc) error {
	j.lock.Lock()
	defer j.lock.Unlock()
	if j.closed {
		return letters.ErrClosed
	}
	if slices.ContainsFunc(j.all, func(other *job) bool { return other.ID == id }) {
		return nil
	}
	at := slices.IndexFunc(j.plans, func(p *plan) bool { return p.ID == id && p.Verb == verb })
	if at < 0 || time.Since(j.plans[at].prepared) > planAge {
		return errExpired
	}
	running := 0
	for _, other := range j.all {
		if other.view(time.Now()).Running {
			running++
		}
	}
	if running >= maxRunning {
		return errTooMany
	}
	begun := &job{plan: *j.plans[at], started: time.Now()}
	begun.progress = letters.Progress{Phase: letters.Looking}
	j.plans = slices.Delete(j.plans, at, at+1)
	j.all = append(j.all, begun)
	j.forget()
	var ctx context.Context
	ctx, begun.cancel = context.WithCancel(j.ctx)
	j.logger.Info(begun.Verb+" was started on the dead-letter page",
		watermill.LogFields{"queue": begun.Queue, "letters": begun.Count, "by": begun.By})
	j.wait.Go(func() {
		defer begun.cancel()
		begun.work(ctx, run)
		j.logger.Info(begun.Verb+" of the dead-letter page has ended",
			watermill.LogFields{"queue": begun.Queue, "summary": begun.line()})
	})
	return nil
}

// forget drops the oldest that have ended.
func (j *jobs) forget() {
	for at := 0; len(j.all) > maxEnded && at < len(j.all); {
		if j.all[at].view(time.Now()).Running {
			at++
			continue
		}
		j.all = slices.Delete(j.all, at, at+1)
	}
}

func (b *job) work(ctx context.Context, run runFunc) {
	summary, err := run(ctx, b.plan, func(p letters.Progress) {
		b.lock.Lock()
		defer b.lock.Unlock()
		b.progress = p
	})
	b.lock.Lock()
	defer b.lock.Unlock()
	b.ended, b.err = time.Now(), err
	b.progress.Summary, b.progress.Phase, b.progress.Elapsed = summary, letters.Ended, b.ended.Sub(b.started)
}

// stop ends a job after the letters in flight. It reports whether there is such a job.
func (j *jobs) stop(id string) bool {
	found := j.find(id)
	if found == nil {
		return false
	}
	found.lock.Lock()
	found.stopped = true
	found.lock.Unlock()
	found.cancel()
	return true
}

func (j *jobs) find(id string) *job {
	for _, one := range j.begun() {
		if one.ID == id {
			return one
		}
	}
	return nil
}

// runs reports whether a job runs on a queue.
func (j *jobs) runs(queue string) bool {
	return slices.ContainsFunc(j.views(time.Now()), func(v jobView) bool { return v.Running && v.Queue == queue })
}

func (j *jobs) close() {
	j.lock.Lock()
	j.closed = true
	j.lock.Unlock()
	j.cancel()
	j.wait.Wait()
}

func (j *jobs) views(now time.Time) []jobView {
	var views []jobView
	for _, one := range slices.Backward(j.begun()) {
		views = append(views, one.view(now))
	}
	return views
}

// begun returns the jobs, the oldest first.
func (j *jobs) begun() []*job {
	j.lock.Lock()
	defer j.lock.Unlock()
	return slices.Clone(j.all)
}

// line returns what became of a job.
func (b *job) line() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	line := fmt.Sprintf("%s %q: %v", b.Verb, b.Queue, b.progress.Summary)
	if b.err != nil {
		line += fmt.Sprintf(" error=%q", b.err)
	}
	return line
}

// jobView is a job at one moment.
type jobView struct {
	plan
	Progress         letters.Progress
	Running, Stopped bool
	Err, Detail      string
	Redead           bool
	Early            bool // not all letters were looked at
	Bounded          bool // the same, because it has done what was confirmed
	Percent, Seen    int
	Announced        string // changes seldom: a screen reader reads it
}

func (b *job) view(now time.Time) jobView {
	b.lock.Lock()
	defer b.lock.Unlock()
	v := jobView{plan: b.plan, Progress: b.progress, Running: b.ended.IsZero(), Stopped: b.stopped}
	if v.Running {
		v.Progress.Elapsed = now.Sub(b.started)
		if b.stopped {
			v.Progress.Phase = phaseStopping
		}
	}
	s := v.Progress.Summary
	v.Seen = s.Done + s.Other + s.Kept
	if s.Total > 0 {
		v.Percent = min(100*v.Seen/s.Total, 100)
	}
	if v.Running {
		v.Announced = v.Phase()
		if v.Percent >= 10 && v.Progress.Phase == letters.Looking {
			v.Announced += fmt.Sprintf(" More than %d%% of the letters were looked at.", v.Percent/10*10)
		}
	} else {
		if b.err == nil {
			v.Percent, v.Bounded = 100, s.Unseen > 0
		}
		v.Announced = "Ended. " + plural(s.Done, "letter was ", "letters were ") + v.Past() + "."
	}
	if v.Progress.Err != nil && v.Running {
		v.Detail = v.Progress.Err.Error()
	}
	if b.err != nil {
		v.Early = s.Unseen > 0 || s.Total == 0
		v.Err, v.Detail, v.Redead = explain(b.err), b.err.Error(), errors.Is(b.err, letters.ErrRedead)
		if v.Detail == v.Err || errors.Is(b.err, context.Canceled) {
			v.Detail = ""
		}
	}
	return v
}

// Past returns what was done with the letters.
func (p plan) Past() string {
	if p.Verb == verbDiscard {
		return "discarded"
	}
	return "sent"
}

// Phase returns what a job is doing.
func (v jobView) Phase() string {
	switch v.Progress.Phase {
	case letters.Looking:
		doing := "sending"
		if v.Verb == verbDiscard {
			doing = "discarding"
		}
		return "Looking: going through the letters, and " + doing + " those that are selected."
	case letters.Canary:
		return "Canary: sending the first letters."
	case letters.Watching:
		return "Watching whether the canary dies again. If none does, it goes on with the others."
	case letters.Waiting:
		return "Waiting for the broker. It goes on when the broker is back."
	case phaseStopping:
		return "Stopping after the letters in flight."
	}
	return "Ended."
}
