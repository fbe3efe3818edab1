// Package rota visits names one after the other, at a load that does not grow with their number.
package rota

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Period is the longest time between two visits of a name, for up to 30 names. Tests shorten it before they start
// anything.
var Period = 30 * time.Second

// least is the shortest time between two visits, and the share of Period of each name for more than 30 names.
const least = time.Second

// A Rota visits each name at least every max(Period, number of names x 1 s), and at most one name a second. The pauses
// are shortened at random by up to a quarter, where they are longer than a second, so that instances do not visit at
// the same time. It is safe for concurrent use.
type Rota struct {
	visit func(name string)

	mu      sync.Mutex
	names   []string // the next one first
	changed chan struct{}
	closing chan struct{}
	closed  bool
	done    sync.WaitGroup
}

// New returns a Rota that calls visit, never twice at the same time. Close it.
func New(visit func(name string)) *Rota {
	r := &Rota{visit: visit, changed: make(chan struct{}, 1), closing: make(chan struct{})}
	r.done.Go(r.run)
	return r
}

// Add adds a name, whose visit comes after those of all others. It does nothing if the name is there.
func (r *Rota) Add(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.names, name) {
		return
	}
	r.names = append(r.names, name)
	r.change()
}

// Set replaces all names.
func (r *Rota) Set(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names = slices.Clone(names)
	r.change()
}

func (r *Rota) change() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Close ends the visits. It waits for the one that is running. It may be called several times.
func (r *Rota) Close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.closing)
	}
	r.mu.Unlock()
	r.done.Wait()
}

func (r *Rota) run() {
	begin, jitter := time.Now(), rand.Float64()
	for r.open() {
		var due <-chan time.Time
		if n := r.count(); n > 0 {
			due = time.After(time.Until(begin.Add(pause(n, jitter))))
		}
		select {
		case <-due:
			begin, jitter = time.Now(), rand.Float64()
			if name, ok := r.next(); ok && r.open() {
				r.visit(name)
			}
		case <-r.changed:
			if due == nil {
				begin = time.Now()
			}
		case <-r.closing:
		}
	}
}

func (r *Rota) open() bool {
	select {
	case <-r.closing:
		return false
	default:
		return true
	}
}

// pause is the time from one visit to the next. jitter is between 0 and 1.
func pause(names int, jitter float64) time.Duration {
	longest := max(Period/time.Duration(names), least)
	return max(longest-time.Duration(jitter*float64(longest)/4), least)
}

func (r *Rota) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.names)
}

func (r *Rota) next() (name string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.names) == 0 {
		return "", false
	}
	name = r.names[0]
	r.names = append(r.names[1:], name)
	return name, true
}
