package main

// A turn is of a key within an owner: what can happen to its first message.
type turn struct {
	c *checker
	w *world
	e int8
	k int
	i item // none: the owner has no message of the key
}

func (t turn) do(a action, change func(n *world, o *owner)) {
	t.c.do(t.w, step{a, t.e, int8(t.k), t.i}, func(n *world) { change(n, &n.o[t.e]) })
}

// become takes a step that changes the phase only.
func (t turn) become(a action, then phase) {
	t.do(a, func(_ *world, o *owner) { o.at[t.k] = then })
}

// forget acks the first message and goes on. The broker ignores the acks of a zombie.
func (t turn) forget(o *owner) {
	if o.life != zombie {
		o.acks.push(t.i)
	}
	o.q[t.k].remove(0)
	o.at[t.k] = idle
}

func (t turn) next() {
	v, may := t.c.v, t.w.may
	switch t.w.o[t.e].at[t.k] {
	case idle:
		t.start()
	case running:
		t.end()
	case waiting:
		if v.nack {
			t.nack()
			return
		}
		t.become(delayEnds, idle)
	case copying:
		t.copy()
	case copied:
		t.do(confirmed, func(_ *world, o *owner) { t.forget(o) })
	case lettering:
		t.do(letters, func(n *world, o *owner) {
			n.skipped |= t.i.bit()
			o.at[t.k] = lettered
		})
	case lettered:
		t.do(skips, func(_ *world, o *owner) { t.forget(o) })
	case blocked:
		if may.retries > 0 {
			t.do(retried, func(n *world, o *owner) {
				n.may.retries--
				o.at[t.k] = idle
			})
		}
		if may.skips > 0 {
			t.do(skippedByOperator, func(n *world, o *owner) {
				n.may.skips--
				o.at[t.k] = lettering
			})
		}
	}
}

func (t turn) start() {
	head := t.w.o[t.e].head[t.k] - 1
	switch {
	case t.i == none:
	case t.c.v.park && head >= 0 && !(t.i&isCopy != 0 && t.i.id() == item(head)): // it follows a head that waits
		t.copy()
	default:
		t.do(starts, func(n *world, o *owner) {
			t.c.begins(n, t.i)
			o.at[t.k] = running
		})
	}
}

func (t turn) end() {
	v, may := t.c.v, t.w.may
	if v.fence && t.e < t.w.latestBy[t.k] {
		t.do(refusedByFence, func(_ *world, o *owner) { *o = owner{life: gone} })
	} else {
		t.do(succeeds, func(n *world, o *owner) {
			t.c.takesEffect(n, t.e, t.i)
			t.unpark(n, o)
			t.forget(o)
		})
	}
	if may.failures > 0 {
		t.do(fails, func(n *world, o *owner) {
			n.may.failures--
			o.at[t.k] = waiting
			if v.tier {
				o.at[t.k] = copying
			}
			if v.park {
				o.head[t.k] = int8(t.i.id()) + 1
				t.record(n, o)
			}
		})
	}
	if may.fatal > 0 {
		t.do(failsForGood, func(n *world, o *owner) {
			n.may.fatal--
			o.at[t.k] = lettering
			if v.block {
				o.at[t.k] = blocked
			}
		})
	}
}

// nack returns the failed message alone.
func (t turn) nack() {
	t.do(nacks, func(n *world, o *owner) {
		o.q[t.k].remove(0)
		o.at[t.k] = idle
		if o.life == active {
			n.unacked.take(t.i)
			n.returned.push(t.i)
		}
	})
}

func (t turn) copy() {
	if t.w.tier.full() {
		t.c.breaks("P5", true, "copies multiply without end")
		return
	}
	t.do(copies, func(n *world, o *owner) {
		n.tier.push(t.i.id())
		o.at[t.k] = copied
		if t.c.v.park && t.i&isCopy == 0 {
			o.copies[t.k]++
			t.record(n, o)
		}
	})
}

// unpark makes the next copy that comes back the head, after the head has had its effect.
func (t turn) unpark(n *world, o *owner) {
	if t.c.v.park && o.copies[t.k] > 0 && t.i&isCopy != 0 {
		o.copies[t.k]--
		o.head[t.k] = 0
		if o.copies[t.k] > 0 {
			o.head[t.k] = int8(t.i.id()) + 2
		}
		t.record(n, o)
	}
}

// record writes the ledger.
func (t turn) record(n *world, o *owner) {
	if t.c.v.ledger && o.life == active {
		n.ledgerHead[t.k], n.ledgerCopies[t.k] = o.head[t.k], o.copies[t.k]
	}
}
