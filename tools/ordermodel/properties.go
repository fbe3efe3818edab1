package main

import "slices"

// begins checks P1 when a handling starts.
func (c *checker) begins(w *world, i item) {
	for place := int8(1); place < i.place(); place++ {
		if before := messageOf(i.key(), place); (w.done|w.skipped)&before.bit() == 0 {
			c.breaks("P1", false, "%s is not settled", before)
		}
	}
}

// takesEffect checks P2 and P3 when a handling by owner e succeeds.
func (c *checker) takesEffect(w *world, e int8, i item) {
	k := i.key()
	if e < w.latestBy[k] && i.place() < w.latest[k] {
		c.breaks("P3", false, "owner %d has handled %s", w.latestBy[k]+1, messageOf(k, w.latest[k]))
	}
	for place := w.latest[k] + 1; place < i.place(); place++ {
		if between := messageOf(k, place); w.skipped&between.bit() == 0 {
			c.breaks("P2", false, "the effect before it was at place %d of its key", w.latest[k])
		}
	}
	w.done, w.latest[k], w.latestBy[k] = w.done|i.bit(), i.place(), max(w.latestBy[k], e)
}

// atRest checks P4 and P5.
func (c *checker) atRest(w *world) {
	o := &w.o[w.active]
	for _, i := range c.v.order {
		queued := w.ready.has(i) || w.returned.has(i)
		held := w.unacked.has(i) || w.canceled.has(i)
		if (w.done|w.skipped)&i.bit() == 0 && !queued && !held {
			c.breaks("P4", true, "%s is neither handled nor in the queue", i)
		}
		full := slices.Contains(o.at[:], blocked) && w.unacked.n == c.v.prefetch[w.active]
		if o.at[i.key()] != blocked && (held || queued && !full) {
			c.breaks("P5", true, "%s waits for ever", i)
		}
	}
}
