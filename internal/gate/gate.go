// Package gate limits how many messages one handler has in flight, each limit for a reason. It is internal because an
// app does not need it: it calls Pause and Resume of its Connection.
package gate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

// Reason is why a handler is limited.
type Reason string

// The reasons, as Health names them.
const (
	Operator Reason = "paused"  // Connection.Pause
	Failing  Reason = "failing" // too many failures
	Holding  Reason = "holding" // too many copies cannot be published
)

// None is no limit.
const None = -1

// Valve is a subscription that can be limited while it runs.
type Valve interface {
	// Limit sets how many messages the subscription has in flight at most. 0: it takes no new messages. Less than 0: no
	// limit but its own. It is called with the gate locked, in the order of the changes: it must not block, nor call
	// the gate.
	Limit(n int)

	// Taken is how many messages take a place under the present limit: all that were delivered under it and are not
	// settled, whether their handler was called or not. It must not block, nor call the gate.
	Taken() int
}

// Gate is how many messages one handler may take, and why. It is safe for concurrent use. Make one with New.
type Gate struct {
	concurrency int
	limit       atomic.Int64 // the effective limit

	watcher atomic.Pointer[Watcher]
	decided atomic.Pointer[map[string]Decision] // replaced, never changed

	places *Places // the places that messages of Enter take

	mu     sync.Mutex
	limits map[Reason]int
	since  time.Time // the beginning of the first of limits
	valves []*attached
	begun  bool // a valve has been attached
	held   int
	aside  int
}

// Watcher belongs to a gate, as a handler's breaker does.
type Watcher interface {
	// Changed is called after a subscription has begun or ended.
	Changed()
	// Keys are those of the handler that are limited, and those whose messages had to wait. The map is the caller's.
	Keys() map[string]retry.KeyHealth
	// Seen reports whether a message of a key is remembered.
	Seen(key string) bool
}

// attached makes equal valves different.
type attached struct{ Valve }

// New returns a gate without limits, of a handler with so many calls at the same time. 0 or less: it is not known.
func New(concurrency int) *Gate {
	g := &Gate{concurrency: max(concurrency, 0), limits: map[Reason]int{}, places: NewPlaces(0, 0)}
	g.limit.Store(None)
	g.Decide(nil)
	return g
}

// Concurrency is how many calls the handler has at the same time without a limit. 0: not known.
func (g *Gate) Concurrency() int { return g.concurrency }

// Attach connects a subscription to the gate, and tells it the limit. Each subscription of a handler gets the whole
// limit. Call detach when the subscription ends.
func (g *Gate) Attach(v Valve) (detach func()) {
	a := &attached{v}
	g.mu.Lock()
	g.valves, g.begun = append(g.valves, a), true
	a.Limit(g.Limit())
	g.mu.Unlock()
	g.notify()
	return func() {
		g.mu.Lock()
		g.valves = slices.DeleteFunc(g.valves, func(other *attached) bool { return other == a })
		g.mu.Unlock()
		g.notify()
	}
}

func (g *Gate) notify() {
	if w := g.Watcher(); w != nil {
		w.Changed()
	}
}

// Watcher returns what Watch has returned, or nil. It costs one atomic load.
func (g *Gate) Watcher() Watcher {
	if w := g.watcher.Load(); w != nil {
		return *w
	}
	return nil
}

// Watch makes the gate's watcher, or returns the one that it has.
func (g *Gate) Watch(w Watcher) Watcher {
	g.watcher.CompareAndSwap(nil, &w)
	return g.Watcher()
}

// Attached reports whether a subscription follows the limit by itself. Where none does, call Enter.
func (g *Gate) Attached() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.valves) > 0
}

// Ended reports whether all subscriptions have ended, which a gate without subscriptions never reports.
func (g *Gate) Ended() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun && len(g.valves) == 0
}

// Set sets the limit of one reason. Less than 0 removes it. The effective limit is the smallest one of all reasons.
func (g *Gate) Set(reason Reason, limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(reason, limit)
}

func (g *Gate) set(reason Reason, limit int) {
	if limit < 0 {
		delete(g.limits, reason)
	} else {
		if len(g.limits) == 0 {
			g.since = time.Now()
		}
		g.limits[reason] = limit
	}
	if len(g.limits) == 0 {
		g.since = time.Time{}
	}
	effective := None
	for _, l := range g.limits {
		if effective == None || l < effective {
			effective = l
		}
	}
	if effective == g.Limit() {
		return
	}
	g.limit.Store(int64(effective))
	for _, v := range g.valves {
		v.Limit(effective)
	}
	g.places.Set(effective)
}

// Limit is the effective limit. It costs one atomic load.
func (g *Gate) Limit() int { return int(g.limit.Load()) }

// Paused returns the reasons that have a limit, sorted. It is nil when there is none.
func (g *Gate) Paused() []Reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.limits))
}

// Since is since when there is a reason, and zero when there is none.
func (g *Gate) Since() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.since
}

// Taken is how many places are taken: by messages of Enter, or of the subscription that has the most.
func (g *Gate) Taken() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.places.Taken()
	for _, v := range g.valves {
		taken = max(taken, v.Taken())
	}
	return taken
}

// Enter waits for a free place under the limit, for a subscription that is no Valve. It returns nil when ctx or stop
// ends first; stop may be nil.
func (g *Gate) Enter(ctx context.Context, stop <-chan struct{}) *Place {
	place := &Place{}
	for {
		if g.places.Take(place) {
			g.places.Pass()
			return place
		}
		select {
		case <-g.places.Changed():
		case <-ctx.Done():
			return nil
		case <-stop:
			return nil
		}
	}
}

// Hold counts a message whose copy cannot be published. While half of the concurrency or more is held, the handler
// takes no new messages, until a quarter or less is held: between the two nothing changes, so that the consumer is not
// cancelled for each message. It reports whether less than half was held before: a message that was in flight already
// can be one too many. Call Release when the message is settled.
func (g *Gate) Hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	room := 2*g.held < g.concurrency || g.concurrency == 0
	g.held++
	if g.concurrency > 0 && 2*g.held >= g.concurrency {
		g.set(Holding, 0)
	}
	return room
}

// Release ends a Hold.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held--
	if 4*g.held <= g.concurrency {
		g.set(Holding, None)
	}
}

// leastAside is how many messages may be set aside, also where Concurrency is less.
const leastAside = 16

// SetAside counts a message that is refused for good. It does not pause the handler: it does not show that other copies
// cannot be published. SetAside reports whether it is not one too many. Call TakeBack when the message is settled.
func (g *Gate) SetAside() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.aside++
	return g.aside <= max(g.concurrency, leastAside)
}

// TakeBack ends a SetAside.
func (g *Gate) TakeBack() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.aside--
}

// Held is how many messages are held, those that are set aside included.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held + g.aside
}
