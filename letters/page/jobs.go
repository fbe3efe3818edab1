package page

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/letters"
)

const (
	maxRunning  = 8                // redrives and discards that run at the same time
	maxEnded    = 20               // jobs that are kept when they have ended
	maxPlans    = 100              // plans that wait for their confirmation
	planAge     = 15 * time.Minute // after which the number of letters must be counted again
	verbRedrive = "Redrive"
	verbDiscard = "Discard"
)

var (
	errTooMany = failure{http.StatusServiceUnavailable, "Too many redrives and discards run. Wait until one has ended.",
		nil}
	errExpired = failure{http.StatusConflict, "This confirmation is unknown or older than 15 minutes. Count the " +
		"letters again.", nil}
)

// plan is a redrive or discard that waits for its confirmation. It is kept on the server, so that what runs is what
// was shown, and runs once.
type plan struct {
	selection
	ID       string
	Verb     string
	Count    int             // letters that it would send or remove
	AtLeast  bool            // the count has ended early
	Redrive  letters.Redrive // the options; of a discard, only those that both have
	prepared time.Time
}

// runFunc runs the redrive or discard of a plan, and reports its progress.
type runFunc = func(context.Context, plan, func(letters.Progress)) (letters.Summary, error)

// job is a plan that was confirmed. The lock of jobs guards its fields.
type job struct {
	plan
	Progress letters.Progress
	Stopped  bool // on the page
	started  time.Time
	ended    time.Time // zero while it runs
	err      error
	cancel   context.CancelFunc
}

// jobs are the redrives and discards of a page.
type jobs struct {
	ctx    context.Context
	cancel context.CancelFunc
	logger watermill.LoggerAdapter

	lock  sync.Mutex
	plans []*plan // the oldest first
	all   []*job  // the oldest first
	wait  sync.WaitGroup
}

// prepare keeps a plan until it is confirmed.
func (j *jobs) prepare(p *plan) {
	p.ID, p.prepared = rand.Text(), time.Now()
	j.lock.Lock()
	defer j.lock.Unlock()
	j.plans = append(j.plans, p)
	j.plans = j.plans[max(len(j.plans)-maxPlans, 0):]
}

// start runs the plan with this ID. A plan that runs already, or did, is no error: a form can be sent twice.
func (j *jobs) start(verb, id string, run runFunc) error {
	j.lock.Lock()
	defer j.lock.Unlock()
	at := slices.IndexFunc(j.plans, func(p *plan) bool { return p.ID == id && p.Verb == verb })
	switch {
	case j.ctx.Err() != nil:
		return letters.ErrClosed
	case j.find(id) != nil:
		return nil
	case at < 0 || time.Since(j.plans[at].prepared) > planAge:
		return errExpired
	case len(slices.DeleteFunc(slices.Clone(j.all), (*job).hasEnded)) >= maxRunning:
		return errTooMany
	}
	begun := &job{plan: *j.plans[at], started: time.Now(), Progress: letters.Progress{Phase: letters.Looking}}
	j.plans = slices.Delete(j.plans, at, at+1)
	j.all = append(j.all, begun)
	for len(j.all) > maxEnded { // drops the oldest that have ended: at most maxRunning have not
		ended := slices.IndexFunc(j.all, (*job).hasEnded)
		j.all = slices.Delete(j.all, ended, ended+1)
	}
	var ctx context.Context
	ctx, begun.cancel = context.WithCancel(j.ctx)
	j.wait.Go(func() {
		defer begun.cancel()
		// A logger may call Page.Summaries: it is called without the lock.
		j.logger.Info(verb+" was started on the dead-letter page",
			watermill.LogFields{"queue": begun.Queue, "letters": begun.Count, "by": begun.Redrive.By})
		summary, err := run(ctx, begun.plan, func(p letters.Progress) {
			j.lock.Lock()
			defer j.lock.Unlock()
			begun.Progress = p
		})
		j.logger.Info(verb+" of the dead-letter page has ended",
			watermill.LogFields{"queue": begun.Queue, "summary": j.end(begun, summary, err)})
	})
	return nil
}

// end notes the end of a job, and returns what became of it.
func (j *jobs) end(b *job, summary letters.Summary, err error) string {
	j.lock.Lock()
	defer j.lock.Unlock()
	b.ended, b.err = time.Now(), err
	b.Progress.Summary, b.Progress.Phase = summary, letters.Ended
	b.Progress.Elapsed = b.ended.Sub(b.started)
	return b.line()
}

// find returns the job with this ID, or nil. The caller has the lock.
func (j *jobs) find(id string) *job {
	for _, one := range j.all {
		if one.ID == id {
			return one
		}
	}
	return nil
}

// stop ends a job after the letters in flight. It reports whether there is such a job.
func (j *jobs) stop(id string) bool {
	j.lock.Lock()
	defer j.lock.Unlock()
	found := j.find(id)
	if found != nil {
		found.Stopped = true
		found.cancel()
	}
	return found != nil
}

// runs reports whether a job runs on a queue.
func (j *jobs) runs(queue string) bool {
	return slices.ContainsFunc(j.views(), func(v jobView) bool { return v.Running && v.Queue == queue })
}

func (j *jobs) close() {
	j.lock.Lock() // no job starts meanwhile
	j.cancel()
	j.lock.Unlock()
	j.wait.Wait()
}

// views returns the jobs at this moment, the newest first.
func (j *jobs) views() (views []jobView) {
	j.lock.Lock()
	defer j.lock.Unlock()
	for _, one := range slices.Backward(j.all) {
		views = append(views, one.view())
	}
	return views
}

func (b *job) hasEnded() bool { return !b.ended.IsZero() }

// line returns what became of a job.
func (b *job) line() string {
	line := fmt.Sprintf("%s %q: %v", b.Verb, b.Queue, b.Progress.Summary)
	if b.err != nil {
		line += fmt.Sprintf(" error=%q", b.err)
	}
	return line
}

// jobView is a job at one moment.
type jobView struct {
	job
	Running, Redead bool
	Err, Detail     string
	Percent         int
	Early           bool // not all letters were looked at
}

func (b *job) view() jobView {
	v := jobView{job: *b, Running: !b.hasEnded(), Redead: errors.Is(b.err, letters.ErrRedead), Err: explain(b.err)}
	s := v.Progress.Summary
	if s.Total > 0 {
		v.Percent = min(100*(s.Done+s.Other+s.Kept)/s.Total, 100)
	}
	detail := b.err
	switch {
	case v.Running:
		v.Progress.Elapsed, detail = time.Since(b.started), v.Progress.Err
	case b.err == nil:
		v.Percent = 100
	default:
		v.Early = s.Unseen > 0 || s.Total == 0
	}
	if detail != nil && detail.Error() != v.Err && !errors.Is(b.err, context.Canceled) {
		v.Detail = detail.Error()
	}
	return v
}
