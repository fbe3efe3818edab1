package door

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
)

// mostDecisions is how many limits that are for no handler of the process it keeps, as those of other apps, and how
// many ends of limits.
const mostDecisions = 1000

// limit is what an operator has decided about a key. Also a decision that ends a limit is kept, for processes that were
// away.
type limit struct {
	command.Request
	until time.Time // when it ends, by the monotonic clock of the process
}

func (l limit) isFor(h keyed) bool { return l.Queue == "" || l.Queue == h.queue }

func (l limit) isEnd() bool { return l.Calls < 0 }

// replaces reports whether a decision holds in place of another one.
func (l limit) replaces(k limit) bool {
	return l.Key == k.Key && (l.Queue == "" || l.Queue == k.Queue) && l.At >= k.At
}

// take adds a decision, and makes all those of handlers. It reports whether it is news. One that another process tells
// may be known, or older than what is known. One of an operator is the latest, whatever the clock of the command shows.
func (c *control) take(added limit, told bool) (news bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits = slices.DeleteFunc(c.limits, func(k limit) bool { return time.Until(k.until) <= 0 })
	for _, k := range c.limits {
		if !told && k.Key == added.Key {
			added.At = max(added.At, k.At+1)
		} else if k.replaces(added) {
			return false, nil
		}
	}
	kept := append(slices.DeleteFunc(slices.Clone(c.limits), added.replaces), added)
	slices.SortStableFunc(kept, func(a, b limit) int { return cmp.Compare(a.At, b.At) })
	own := func(k limit) bool { return !k.isEnd() && slices.ContainsFunc(c.keyed, k.isFor) }
	same := slices.DeleteFunc(slices.Clone(kept), func(k limit) bool {
		return k.isEnd() != added.isEnd() || own(k) != own(added)
	})
	most := map[bool]int{true: gate.MostKeys, false: mostDecisions}[own(added)]
	if len(same) > most {
		// an end whose limit is kept would make it one again
		oldest := slices.IndexFunc(kept, func(k limit) bool {
			return k.isEnd() && added.isEnd() && !slices.ContainsFunc(kept, func(older limit) bool {
				return older.Key == k.Key && older.At < k.At && !older.isEnd()
			})
		})
		if oldest < 0 {
			return false, fmt.Errorf("%d keys are limited by an operator, and no more can be: resume one of them first", most)
		}
		kept = slices.Delete(kept, oldest, oldest+1)
	}
	c.limits = kept
	c.apply()
	return true, nil
}

// apply makes the decisions those of handlers, of which each may have several queues.
func (c *control) apply() {
	all := map[*gate.Gate]map[string]gate.Decision{}
	for _, h := range c.keyed {
		all[h.gate] = map[string]gate.Decision{}
	}
	for _, k := range c.limits {
		for _, h := range c.keyed {
			if k.isFor(h) {
				d := gate.Decision{Limit: k.Calls, Until: k.until}
				if before, found := all[h.gate][k.Key]; found {
					d.Before = &before
				}
				all[h.gate][k.Key] = d
			}
		}
	}
	for g, decided := range all {
		g.Decide(decided)
	}
}

// told returns the decisions for another process.
func (c *control) told() (all []command.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.limits {
		if k.Lasts = time.Until(k.until); k.Lasts > 0 {
			all = append(all, k.Request)
		}
	}
	return all
}

// hear takes over the decisions of another process. Those that no command can have, and more than there can be, are
// left out.
func (c *control) hear(told []command.Request) {
	for _, r := range told {
		if r.Do = command.Limit; r.Check() == nil {
			_, _, _ = c.limit(r, true)
		}
	}
}

// limit limits a key, or ends its limit. It returns of how many handlers, and how many of them have seen the key.
func (c *control) limit(r command.Request, told bool) (decided, seen int, err error) {
	r.Key, r.Told = gate.ShortKey(r.Key), nil
	now := time.Now()
	for _, h := range c.keyedOf(r.Queue) {
		if _, limited := h.gate.Decided(r.Key, now); limited || r.Calls >= 0 {
			decided++
		}
		if w := h.gate.Watcher(); w != nil && w.Seen(r.Key) {
			seen++
		}
	}
	if news, err := c.take(limit{r, now.Add(r.Lasts)}, told); !news {
		return 0, seen, err
	}
	if decided > 0 {
		did := map[int]string{0: "paused", command.NoLimit: "resumed"}[r.Calls]
		c.logger.Info("An operator has "+cmp.Or(did, "limited")+" a key", watermill.LogFields{"queue": r.Queue,
			"key": r.Key, "calls": r.Calls, "for": r.Lasts, "told_by_another_process": told})
	}
	return decided, seen, nil
}
