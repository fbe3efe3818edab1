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

// limits are what operators have decided about keys, as far as the process knows: the latest decision is the last one.
// Also one that ends a limit is kept, for processes that were away.
type limits []limit

type limit struct {
	command.Request
	until time.Time // when it ends, by the monotonic clock of the process
}

// take adds a decision. It reports whether it is news. One that another process tells may be known, or older than what
// is known. One of an operator is the latest, whatever the clock of the command shows.
func (l *limits) take(r command.Request, told bool, now time.Time) (news bool, err error) {
	*l = slices.DeleteFunc(*l, func(k limit) bool { return !now.Before(k.until) })
	replaces := func(a, b command.Request) bool {
		return a.Key == b.Key && (a.Queue == "" || a.Queue == b.Queue) && a.At >= b.At
	}
	for _, k := range *l {
		if !told && k.Key == r.Key {
			r.At = max(r.At, k.At+1)
		} else if replaces(k.Request, r) {
			return false, nil
		}
	}
	*l = slices.DeleteFunc(*l, func(k limit) bool { return replaces(r, k.Request) })
	var alike []int // the limits, or the ends of limits
	for at, k := range *l {
		if (k.Calls < 0) == (r.Calls < 0) {
			alike = append(alike, at)
		}
	}
	if count := len(alike); count >= gate.MostKeys {
		if r.Calls >= 0 {
			return false, fmt.Errorf("%d keys are limited by an operator, and no more can be: resume one of them first", count)
		}
		*l = slices.Delete(*l, alike[0], alike[0]+1)
	}
	*l = append(*l, limit{r, now.Add(min(r.Lasts, command.LongestLimit))})
	slices.SortStableFunc(*l, func(a, b limit) int { return cmp.Compare(a.At, b.At) })
	return true, nil
}

// apply makes the decisions those of handlers.
func (l *limits) apply(handlers []keyed) {
	all := map[*gate.Gate]map[string]gate.Decision{}
	for _, h := range handlers {
		all[h.gate] = map[string]gate.Decision{}
	}
	for _, k := range *l {
		for _, h := range handlers {
			if k.Queue == "" || k.Queue == h.queue {
				all[h.gate][k.Key] = gate.Decision{Limit: k.Calls, Until: k.until}
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

// hear takes over the decisions of another process.
func (c *control) hear(told []command.Request) {
	for _, r := range told {
		_, _, _ = c.limit(r, true) // more than there can be are left out
	}
}

// limit limits a key, or ends its limit. It returns of how many handlers, and how many of them have seen the key.
func (c *control) limit(r command.Request, told bool) (decided, seen int, err error) {
	r.Key = gate.ShortKey(r.Key)
	now := time.Now()
	for _, h := range c.keyedOf(r.Queue) {
		if _, limited := h.gate.Decided(r.Key, now); limited || r.Calls >= 0 {
			decided++
		}
		if w := h.gate.Watcher(); w != nil && w.Seen(r.Key) {
			seen++
		}
	}
	c.mu.Lock()
	news, err := c.limits.take(r, told, now)
	c.limits.apply(c.keyed)
	c.mu.Unlock()
	if !news {
		return 0, seen, err
	}
	if decided > 0 {
		did := map[int]string{0: "paused", command.NoLimit: "resumed"}[r.Calls]
		c.logger.Info("An operator has "+cmp.Or(did, "limited")+" a key", watermill.LogFields{"queue": r.Queue,
			"key": r.Key, "calls": r.Calls, "for": r.Lasts, "told_by_another_process": told})
	}
	return decided, seen, err
}
