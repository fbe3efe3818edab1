package inflight

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/internal/tasks"
)

// grid is the time between two takes of a topic that has less than was asked for. The readers of a process take at the
// same times, so that a server can combine what they ask for.
const grid = 5 * time.Millisecond

// Server is asked for all topics of a process at once.
type Server interface {
	// Look returns the topics that may have messages, and the time until then. It is called by one goroutine.
	Look(ctx context.Context, topics []string) (map[string]time.Duration, error)
}

// Watch wakes the readers of a process when their topics may have messages. It looks for all readers at once, and only
// while one of them waits. Each reader takes for itself, so a slow or broken topic delays no other. Several processes
// take at the same time what they have seen is due: one gets it, and the others have asked once in vain.
type Watch struct {
	server   Server
	interval time.Duration
	logger   watermill.LoggerAdapter
	tasks    *tasks.Tasks
	began    time.Time     // the beginning of the grid
	waits    chan struct{} // a reader waits; has room for one

	mu      sync.Mutex
	alarms  map[string][]*Alarm // the alarms, by topic
	running bool
}

// NewWatch returns a watch that looks once in each interval, until the context ends.
func NewWatch(ctx context.Context, server Server, interval time.Duration, logger watermill.LoggerAdapter) *Watch {
	return &Watch{
		server: server, interval: interval, logger: logger, began: time.Now(), waits: make(chan struct{}, 1),
		alarms: map[string][]*Alarm{}, tasks: tasks.New(ctx),
	}
}

// Close ends the looks. The readers must have ended.
func (w *Watch) Close() { w.tasks.Close() }

// Alarm returns the alarm of a reader, whose first take does not wait.
func (w *Watch) Alarm(topic string) *Alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &Alarm{watch: w, topic: topic, when: time.Now(), changed: make(chan struct{}, 1)}
	w.alarms[topic] = append(w.alarms[topic], a)
	return a
}

// Expect makes the readers of a topic take in a time, or before.
func (w *Watch) Expect(topic string, in time.Duration) { w.wake(topic, in, false) }

// Found makes the readers of a topic take now, as if Look had returned it.
func (w *Watch) Found(topic string) { w.wake(topic, 0, true) }

func (w *Watch) wake(topic string, in time.Duration, looked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.alarms[topic] {
		a.at(time.Now().Add(in), looked)
	}
}

// wait notes that a reader waits. The caller has locked the watch.
func (w *Watch) wait(a *Alarm) {
	if a.waiting {
		return
	}
	a.waiting = true
	if !w.running {
		w.running = true
		w.tasks.Go(w.run)
	}
	signal(w.waits)
}

func (w *Watch) run() {
	for failures := 0; w.tasks.Context.Err() == nil; {
		topics := w.topics()
		if len(topics) == 0 {
			select {
			case <-w.waits:
			case <-w.tasks.Context.Done():
			}
			continue
		}
		found, err := w.server.Look(w.tasks.Context, topics)
		for topic, in := range found {
			w.wake(topic, in, true)
		}
		if err == nil || w.tasks.Context.Err() != nil {
			failures = 0
			_ = pauses.Sleep(w.tasks.Context, w.interval)
			continue
		}
		if failures == 0 {
			w.logger.Error("Cannot look for messages, trying again", err, nil)
		}
		for _, topic := range topics { // each reader sees by itself whether its topic can be read
			w.Expect(topic, 0)
		}
		_ = pauses.Sleep(w.tasks.Context, pauses.After(failures))
		failures++
	}
}

// topics returns those with a reader that waits.
func (w *Watch) topics() (topics []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, alarms := range w.alarms {
		if slices.ContainsFunc(alarms, func(a *Alarm) bool { return a.waiting }) {
			topics = append(topics, topic)
		}
	}
	return topics
}

// Alarm is that of one reader.
type Alarm struct {
	watch   *Watch
	topic   string
	changed chan struct{} // when is earlier; has room for one

	// The lock of the watch guards these.
	when    time.Time // the time of the next take; zero: it is not known
	looked  bool      // Look has returned the topic since the last take
	waiting bool
}

// Close forgets the alarm.
func (a *Alarm) Close() {
	a.watch.mu.Lock()
	defer a.watch.mu.Unlock()
	rest := slices.DeleteFunc(a.watch.alarms[a.topic], func(other *Alarm) bool { return other == a })
	if a.watch.alarms[a.topic] = rest; len(rest) == 0 {
		delete(a.watch.alarms, a.topic)
	}
}

// Take waits until the topic may have messages, and takes at most n. The function take is told whether Look has
// returned the topic. It returns the messages and, where they are less than n, the time until the next ones: negative,
// if it is not known.
func (a *Alarm) Take(
	ctx context.Context, n int, take func(looked bool) ([]*Taken, time.Duration, error),
) ([]*Taken, error) {
	for {
		looked, err := a.wait(ctx)
		if err != nil {
			return nil, err
		}
		taken, next, err := take(looked)
		subscriptions.Read(ctx, err)
		a.watch.mu.Lock()
		now := time.Now()
		switch {
		case err != nil:
			a.at(now, looked)
		case len(taken) >= n || next == 0 && len(taken) > 0:
			a.at(now, false)
		case next >= 0:
			later := now.Add(next + grid).Sub(a.watch.began).Truncate(grid)
			a.at(a.watch.began.Add(later), false)
		}
		a.watch.mu.Unlock()
		if err != nil || len(taken) > 0 {
			return taken, err
		}
	}
}

// at makes the next take at a time, or before. The caller has locked the watch.
func (a *Alarm) at(when time.Time, looked bool) {
	a.looked = a.looked || looked
	if !a.when.IsZero() && !when.Before(a.when) {
		return
	}
	a.when = when
	signal(a.changed)
}

// wait waits for the time of the next take, and forgets it.
func (a *Alarm) wait(ctx context.Context) (looked bool, err error) {
	for ctx.Err() == nil {
		a.watch.mu.Lock()
		when := a.when
		in := time.Until(when)
		if !when.IsZero() && in <= 0 {
			looked = a.looked
			a.looked, a.when, a.waiting = false, time.Time{}, false
			a.watch.mu.Unlock()
			return looked, nil
		}
		a.watch.wait(a)
		a.watch.mu.Unlock()
		a.sleep(ctx, when, in)
	}
	a.watch.mu.Lock()
	defer a.watch.mu.Unlock()
	a.waiting = false
	return false, ctx.Err()
}

// sleep waits until the time of the next take has come, or has changed.
func (a *Alarm) sleep(ctx context.Context, when time.Time, in time.Duration) {
	var due <-chan time.Time
	if !when.IsZero() {
		timer := time.NewTimer(in)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
	case <-a.changed:
	case <-ctx.Done():
	}
}
