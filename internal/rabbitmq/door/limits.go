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

// mostDecisions is how many limits that are for no handler of the process it keeps, and how many ends of limits.
const mostDecisions = 1000

// limits are what operators have decided about keys, as far as the process knows: the latest decision is the last one.
// Also one that ends a limit is kept, for processes that were away.
type limits []limit

type limit struct {
	command.Request
	until time.Time // when it ends, by the monotonic clock of the process
}

func (l limit) isFor(h keyed) bool { return l.Queue == "" || l.Queue == h.queue }

// take adds a decision. It reports whether it is news. One that another process tells may be known, or older than what
// is known. One of an operator is the latest, whatever the clock of the command shows. The limits that the handlers do
// not have are those of other apps.
func (l *limits) take(r command.Request, told bool, handlers []keyed, now time.Time) (news bool, err error) {
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
	kept := slices.DeleteFunc(slices.Clone(*l), func(k limit) bool { return replaces(r, k.Request) })
	kept = append(kept, limit{r, now.Add(r.Lasts)})
	slices.SortStableFunc(kept, func(a, b limit) int { return cmp.Compare(a.At, b.At) })
	isEnd := func(k limit) bool { return k.Calls < 0 }
	own := func(k limit) bool {
		return !isEnd(k) && slices.ContainsFunc(handlers, func(h keyed) bool { return k.isFor(h) })
	}
	added, most, count := limit{Request: r}, mostDecisions, 0
	if own(added) {
		most = gate.MostKeys
	}
	for _, k := range kept {
		if isEnd(k) == isEnd(added) && own(k) == own(added) {
			count++
		}
	}
	if count > most {
		// an end whose limit is kept would make it one again
		oldest := slices.IndexFunc(kept, func(k limit) bool {
			return isEnd(k) && isEnd(added) && !slices.ContainsFunc(kept, func(older limit) bool {
				return older.Key == k.Key && older.At < k.At && !isEnd(older)
			})
		})
		if oldest < 0 {
			return false, fmt.Errorf("%d keys are limited by an operator, and no more can be: resume one of them first", most)
		}
		kept = slices.Delete(kept, oldest, oldest+1)
	}
	*l = kept
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
			if k.isFor(h) {
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

// hear takes over the decisions of another process. Those that no command can have, and more than there can be, are
// left out.
func (c *control) hear(told []command.Request) {
	for _, r := range told {
		if r.CheckLimit() == nil {
			_, _, _ = c.limit(r, true)
		}
	}
}

// limit limits a key, or ends its limit. It returns of how many handlers, and how many of them have seen the key.
func (c *control) limit(r command.Request, told bool) (decided, seen int, err error) {
	r.Key, r.Do, r.Told = gate.ShortKey(r.Key), command.Limit, nil
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
	news, err := c.limits.take(r, told, c.keyed, now)
	if news {
		c.limits.apply(c.keyed)
	}
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
