package simulation

// limited checks at the begin of a call that a handler has not more calls than its concurrency, and none while it is
// paused.
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
	case most == 1 && open > 1 && !p.dead.Load() && !p.world.plan.mayHave(readd):
		p.world.ledger.violated(id, "process %d calls for %s of %s before the outcome of the call before is known", p.number,
			id, queue)
	case paused:
		p.world.ledger.violated(id, "process %d calls for %s of %s while it is paused", p.number, id, queue)
	}
}

// settled notes that the outcome of a call is known. With a concurrency of 1, only then the next call begins.
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
