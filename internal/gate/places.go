package gate

import "sync"

// Places limits how many calls of a handler there are, and how many messages are in flight: those of the calls, and
// those whose call has ended and which are not settled. A limit of 0 is a pause. Messages that are in flight at a pause
// do not count for the limits after it: a handler that never ends would otherwise keep the place of a limit of 1. It is
// safe for concurrent use. Make one with NewPlaces.
type Places struct {
	mostCalls, most int // calls, and messages in flight, whatever the limit is; 0: no bound

	mu      sync.Mutex
	limit   int           // how many calls may run; less than 0: any number
	calls   int           // places that are taken
	all     int           // messages in flight, without those that were set aside
	round   *round        // from one pause to the next
	aside   int           // messages that were set aside so far
	changed chan struct{} // has room for one
	asides  chan struct{} // has room for one
}

type round struct{ taken int }

// A Place is taken by one message. The zero value is not taken.
type Place struct {
	places *Places
	round  *round // nil: not taken, or given back
	ended  bool   // the call has
}

// NewPlaces returns places without a limit, for so many calls and messages in flight. 0: there is no bound. Where there
// may be no more messages than calls, a message keeps its place after its call.
func NewPlaces(calls, messages int) *Places {
	return &Places{mostCalls: calls, most: messages, limit: None, round: &round{}, changed: make(chan struct{}, 1),
		asides: make(chan struct{}, 1)}
}

// Set sets the limit. Less than 0: none.
func (p *Places) Set(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
	if limit == 0 {
		p.round = &round{}
	}
	wake(p.changed)
}

// Take reports whether there is a free place, and takes it for the message.
func (p *Places) Take(place *Place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full() {
		return false
	}
	p.all++
	p.calls++
	p.round.taken++
	*place = Place{places: p, round: p.round}
	return true
}

func (p *Places) full() bool {
	return p.limit >= 0 && p.round.taken >= p.limit || p.mostCalls > 0 && p.calls >= p.mostCalls ||
		p.most > 0 && p.all >= p.most
}

// Limit is how many calls there may be. 0: there is a pause.
func (p *Places) Limit() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit < 0 {
		return p.mostCalls
	}
	return min(p.limit, p.mostCalls)
}

// Calls is how many places are taken.
func (p *Places) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

// Taken is how many places were taken since the last pause, and not given back.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.round.taken
}

// SetsAside returns a channel that receives when a message was set aside.
func (p *Places) SetsAside() <-chan struct{} { return p.asides }

// Aside is how many messages were set aside so far.
func (p *Places) Aside() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.aside
}

// Changed returns a channel that receives when there may be a free place again, and when the limit has changed. One of
// the goroutines that wait receives: it calls Take, and where it has got a place, Pass.
func (p *Places) Changed() <-chan struct{} { return p.changed }

// Pass wakes the next goroutine that waits for Changed. One that waits alone need not call it.
func (p *Places) Pass() { wake(p.changed) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Fits reports whether the place is one of the present limit.
func (p *Place) Fits() bool {
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	return p.round == p.places.round && (p.places.limit < 0 || p.round.taken <= p.places.limit)
}

// EndCall gives the place to another call, although the message stays in flight. Under a limit the message keeps it: a
// limit below the bound of the calls is for messages that are not settled.
func (p *Place) EndCall() {
	if p.places == nil {
		return
	}
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	limited := p.places.limit >= 0 && p.places.limit < p.places.mostCalls
	if p.round == nil || p.ended || limited || p.places.most <= p.places.mostCalls {
		return
	}
	full := p.places.full()
	p.endCall()
	if full {
		wake(p.places.changed)
	}
}

func (p *Place) endCall() {
	if !p.ended {
		p.places.calls--
		p.round.taken--
		p.ended = true
	}
}

// Leave gives the place back, once, and ends what EndCall has left.
func (p *Place) Leave() { p.leave(false) }

// SetAside is Leave for a message that stays in flight.
func (p *Place) SetAside() { p.leave(true) }

func (p *Place) leave(aside bool) {
	if p.places == nil {
		return
	}
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	if p.round == nil {
		return
	}
	full := p.places.full()
	p.endCall()
	p.places.all--
	p.round = nil
	if aside {
		p.places.aside++
		wake(p.places.asides)
	}
	if full {
		wake(p.places.changed)
	}
}
