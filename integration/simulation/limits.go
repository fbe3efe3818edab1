package simulation

import "cmp"

// limited checks at the begin of a call that a handler has not more calls than its concurrency, not more messages in
// flight than its prefetch, and none while it is paused.
func (p *process) limited(queue, id string) {
	p.mu.Lock()
	p.calls[queue]++
	p.open[queue]++
	calls, paused, open := p.calls[queue], p.paused[queue], p.open[queue]
	p.mu.Unlock()
	switch most := p.world.plan.concurrency; {
	case calls > most && !p.dead.Load() && !p.world.plan.mayHave(readd):
		p.world.ledger.violated(id, "process %d has %d calls of %s at the same time, and may have %d", p.number, calls, queue,
			most)
	case open > p.world.plan.inFlight() && !p.dead.Load() && !p.world.plan.mayHave(readd):
		p.world.ledger.violated(id, "process %d has %d messages of %s that are not settled, and may have %d", p.number, open,
			queue, p.world.plan.inFlight())
	case paused:
		p.world.ledger.violated(id, "process %d calls for %s of %s while it is paused", p.number, id, queue)
	}
}

// inFlight is how many messages of a handler may be called whose outcome is not known. With a concurrency of 1, one is
// handled after the other.
func (p plan) inFlight() int {
	if p.shape == keepsOrder || p.concurrency == 1 {
		return p.concurrency
	}
	return cmp.Or(p.prefetch, 2*p.concurrency)
}

// settled notes that the outcome of a call is known.
func (p *process) settled(queue string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[queue]--
}

func (p *process) leaves(queue, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[queue]--
	p.callsOf[queue+p.world.plan.keyOf(id)]--
}

func (p *process) setPaused(queue string, paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused[queue] = paused
}
