package door

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// TurnPeriod is the longest time between two turns of a work queue, for up to 30 of them. Tests shorten it before they
// connect.
var TurnPeriod = 30 * time.Second

// leastPause is the shortest time between two turns, and the share of TurnPeriod of each name for more than 30 names.
const leastPause = time.Second

// turns gives names one after the other, at a rate that does not grow with their number: each name at least every
// max(TurnPeriod, number of names x 1 s), and at most one a second. The pauses are shortened at random by up to a
// quarter, where they are longer than a second, so that instances do not take turns at the same time.
type turns struct {
	mu      sync.Mutex
	names   []string // the next one first
	changed chan struct{}

	begin time.Time // the beginning of the present pause. Only next uses it
}

func newTurns() *turns {
	return &turns{changed: make(chan struct{}, 1), begin: time.Now()}
}

// add adds a name, whose turn comes after those of all others. It does nothing if the name is there.
func (t *turns) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.names, name) {
		t.names = append(t.names, name)
		t.change()
	}
}

// clear removes all names.
func (t *turns) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names = nil
	t.change()
}

func (t *turns) change() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// next waits for the next turn. It returns false when ctx has ended.
func (t *turns) next(ctx context.Context) (name string, open bool) {
	for ctx.Err() == nil {
		var due <-chan time.Time
		if n := t.count(); n > 0 {
			due = time.After(time.Until(t.begin.Add(pauseOf(n))))
		}
		select {
		case <-due:
			t.begin = time.Now()
			if name, found := t.take(); found {
				return name, true
			}
		case <-t.changed:
			if due == nil {
				t.begin = time.Now()
			}
		case <-ctx.Done():
		}
	}
	return "", false
}

// pauseOf is the time from one turn to the next.
func pauseOf(names int) time.Duration {
	longest := max(TurnPeriod/time.Duration(names), leastPause)
	return max(longest-rand.N(longest/4), leastPause)
}

func (t *turns) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.names)
}

func (t *turns) take() (name string, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.names) == 0 {
		return "", false
	}
	name = t.names[0]
	t.names = append(t.names[1:], name)
	return name, true
}
