package main

// expand takes every step that can come next.
func (c *checker) expand(w *world) {
	c.moved = false
	if order := c.v.order; int(w.published) < len(order) {
		c.other(w, publishes, order[w.published], func(n *world) {
			n.ready.push(order[n.published])
			n.published++
		})
	}
	for e := range w.o {
		c.owner(w, int8(e))
	}
	c.tier(w)
	if w.may.faults > 0 && w.active+1 < owners {
		c.fault(w, crashes, gone)
		if c.v.zombies {
			c.fault(w, deposed, zombie)
		}
		if c.v.cancel {
			c.fault(w, cancels, draining)
		}
		if c.v.timeout && w.unacked.n > 0 {
			c.fault(w, timesOut, draining)
		}
	}
	if !c.moved {
		c.atRest(w)
	}
}

// tier takes the steps of the tier and of its dead-letter worker, which forwards in the order of arrival.
func (c *checker) tier(w *world) {
	if w.forwarded < w.tier.n {
		i := w.tier.a[w.forwarded]
		c.other(w, forwards, i, func(n *world) {
			n.ready.push(i | isCopy)
			n.forwarded++
		})
		if c.v.refuses && w.may.worker > 0 {
			c.other(w, refuses, i, func(n *world) {
				n.may.worker--
				n.refused.push(n.tier.remove(n.forwarded))
			})
		}
	}
	if w.refused.n > 0 {
		c.other(w, sendsAgain, w.refused.first(), func(n *world) { n.ready.push(n.refused.remove(0) | isCopy) })
	}
	if w.forwarded > 0 {
		c.other(w, settles, w.tier.first(), func(n *world) {
			n.tier.remove(0)
			n.forwarded--
		})
		if !c.v.refuses && w.may.worker > 0 {
			c.other(w, workerRestarts, none, func(n *world) {
				n.may.worker--
				n.forwarded = 0
			})
		}
	}
}

// fault ends the active consumer and activates the next owner.
func (c *checker) fault(w *world, a action, then life) {
	e := w.active
	c.do(w, step{a, e, -1, none}, func(n *world) {
		if a == timesOut {
			n.returned.push(n.unacked.remove(0))
		}
		if then == draining {
			n.unacked.drainInto(&n.canceled)
		} else {
			n.unacked.drainInto(&n.returned)
			n.o[e].acks = queue{}
		}
		if n.o[e].life = then; then == gone {
			n.o[e] = owner{life: gone}
		}
		n.may.faults--
		n.active++
		next := &n.o[n.active]
		next.life = active
		if c.v.ledger {
			next.head, next.copies = n.ledgerHead, n.ledgerCopies
		}
	})
}

// owner takes the steps of owner e.
func (c *checker) owner(w *world, e int8) {
	o := &w.o[e]
	mine := func(a action, about item, change func(n *world, o *owner)) {
		c.do(w, step{a, e, -1, about}, func(n *world) { change(n, &n.o[e]) })
	}
	switch o.life {
	case unborn, gone:
		return
	case zombie:
		mine(zombieDies, none, func(_ *world, o *owner) { *o = owner{life: gone} })
	case draining:
		if o.at == [keys]phase{} && o.acks.n == 0 && o.q[0].n+o.q[1].n == 0 {
			mine(canceledIsGone, none, func(n *world, o *owner) {
				n.canceled.drainInto(&n.returned)
				*o = owner{life: gone}
			})
		}
	}
	if o.acks.n > 0 {
		mine(acks, o.acks.first(), func(n *world, o *owner) {
			i := o.acks.remove(0)
			if o.life == draining {
				n.canceled.take(i)
			} else {
				n.unacked.take(i)
			}
		})
	}
	for k := range keys {
		t := turn{c, w, e, k, o.q[k].first()}
		t.next()
	}
}
