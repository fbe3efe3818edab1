package observe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/internal/backend"
)

// pauseFactor is how many times as long as a look the pause after it is at least.
const pauseFactor = 20

// looks asks a Connection what waits, in the background, and keeps the last answer.
type looks struct {
	backend.Observed
	config Config
	ctx    context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	running bool
	next    time.Time // when the next look may begin; zero: now
	figures []backend.Waiting
	at      time.Time // the time of figures; until there are any, when the Connection was attached
	failed  bool      // since the last answer
}

func newLooks(observed backend.Observed, config Config) *looks {
	l := &looks{Observed: observed, config: config, at: time.Now()}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// gather adds the last answer, and begins a look where it is too old.
func (l *looks) gather(to figures, now time.Time) {
	if l.Waiting == nil || l.config.WaitingEvery < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	addWaiting(to, l.figures, now)
	to.add(waitingAge, largest, age(l.at, now), labels{})
	if !l.running && !now.Before(l.next) && l.ctx.Err() == nil {
		l.running = true
		go l.look()
	}
}

// look asks once. A Waiter that does not return at its deadline is logged then, and no further look begins before it
// returns.
func (l *looks) look() {
	began := time.Now()
	ctx, cancel := context.WithTimeout(l.ctx, l.config.WaitingTimeout)
	defer cancel()
	late := time.AfterFunc(l.config.WaitingTimeout+time.Second, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.fail(fmt.Errorf("it has not returned at its deadline, %v", l.config.WaitingTimeout))
	})
	figures, err := l.ask(ctx)
	late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.running, l.next = false, now.Add(max(l.config.WaitingEvery, pauseFactor*now.Sub(began)))
	if err != nil {
		l.fail(err)
		return
	}
	l.figures, l.at, l.failed = figures, now, false
}

func (l *looks) ask(ctx context.Context) (figures []backend.Waiting, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("panic: %v", recovered)
		}
	}()
	return l.Waiting(ctx)
}

// fail logs the first failure since the last answer. That of a Connection that is closed is none.
func (l *looks) fail(err error) {
	if !l.failed && l.ctx.Err() == nil {
		l.failed = true
		l.Logger.Error("Cannot find out what waits: the metrics have the last figures. This is logged once until "+
			"it works again", err, nil)
	}
}
