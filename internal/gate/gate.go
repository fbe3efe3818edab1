// Package gate limits how many messages one handler has in flight, each limit for a reason. It is internal because an app does not
// need it: it calls Pause and Resume of its Connection.
package gate

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
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
	// Limit sets how many messages the subscription has in flight at most. 0: it takes no new messages. Less than 0: no limit but
	// its own. It is called with the gate locked, in the order of the changes: it must not block, nor call the gate.
	Limit(n int)
}

// Gate is how many messages one handler may take, and why. It is safe for concurrent use. Make one with New.
type Gate struct {
	concurrency int
	limit       atomic.Int64 // the effective limit

	mu      sync.Mutex
	limits  map[Reason]int
	valves  []*attached
	entered int           // places that Enter has given
	changed chan struct{} // closed when a place may have become free; nil while no Enter waits
	held    int
}

// attached makes equal valves different.
type attached struct{ Valve }

// New returns a gate without limits, of a handler with so many messages in flight. 0 or less: the number is not known.
func New(concurrency int) *Gate {
	g := &Gate{concurrency: max(concurrency, 0), limits: map[Reason]int{}}
	g.limit.Store(None)
	return g
}

// Concurrency is how many messages the handler has in flight without a limit. 0: not known.
func (g *Gate) Concurrency() int { return g.concurrency }

// Attach connects a subscription to the gate, and tells it the limit. Each subscription of a handler gets the whole limit. Call
// detach when the subscription ends.
func (g *Gate) Attach(v Valve) (detach func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := &attached{v}
	g.valves = append(g.valves, a)
	a.Limit(g.Limit())
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.valves = slices.DeleteFunc(g.valves, func(other *attached) bool { return other == a })
	}
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
		g.limits[reason] = limit
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
	g.wake()
}

// Limit is the effective limit. It costs one atomic load.
func (g *Gate) Limit() int { return int(g.limit.Load()) }

// Paused returns the reasons with the limit 0, sorted. It is nil when there is none.
func (g *Gate) Paused() []Reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	var paused []Reason
	for reason, limit := range g.limits {
		if limit == 0 {
			paused = append(paused, reason)
		}
	}
	slices.Sort(paused)
	return paused
}

// Enter waits for a free place under the limit, for a subscription that is no Valve. It reports whether it has got one, which
// Leave gives back. It returns false when ctx or stop ends first; stop may be nil. A message that entered before a limit was set
// keeps its place and counts.
func (g *Gate) Enter(ctx context.Context, stop <-chan struct{}) bool {
	for {
		free := g.enter()
		if free == nil {
			return true
		}
		select {
		case <-free:
		case <-ctx.Done():
			return false
		case <-stop:
			return false
		}
	}
}

// enter takes a place. Where none is free, it returns a channel that is closed when one may have become free.
func (g *Gate) enter() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if limit := g.Limit(); limit < 0 || g.entered < limit {
		g.entered++
		return nil
	}
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

// Leave gives a place of Enter back.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entered--
	g.wake()
}

func (g *Gate) wake() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// Hold counts a message whose copy cannot be published. While half of the concurrency or more is held, the handler takes no new
// messages, until a quarter or less is held: between the two nothing changes, so that the consumer is not cancelled for each message.
// Call Release when the message is settled.
func (g *Gate) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
	if g.concurrency > 0 && 2*g.held >= g.concurrency {
		g.set(Holding, 0)
	}
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

// Held is how many messages are held.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}
