package gate

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// mostKeys is how many keys of a handler are described, and how many an operator can limit at the same time: a process
// that starts takes over what others describe.
const mostKeys = 20

// Key is the state of one key of a handler.
type Key struct {
	Key    string
	Paused string    // why it is limited; empty: it is not
	Until  time.Time // zero: not known
	Limit  int       // while it is limited
	Parked uint64    // how often a message of it had to wait
}

// longestKey is how many bytes of a key are remembered. A longer one is cut, and its hash makes it another one.
const longestKey = 255

// ShortKey returns a key as it is remembered and recorded: one that is too long, or no valid text, has its hash.
func ShortKey(key string) string {
	if len(key) <= longestKey && utf8.ValidString(key) && !strings.Contains(key, "\x00") {
		return key
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key))
	start := strings.ReplaceAll(strings.ToValidUTF8(key[:min(len(key), longestKey-17)], ""), "\x00", "")
	return fmt.Sprintf("%s~%016x", start, hash.Sum64())
}

// A Decision is what an operator has decided about a key of a handler. It ends by itself.
type Decision struct {
	Limit int       // calls at the same time; 0: the key is paused
	Until time.Time // when it ends
}

// Decide limits a key until a time. One that is over removes the decision about the key.
func (g *Gate) Decide(key string, d Decision) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	key, now := ShortKey(key), time.Now()
	next := g.decisions(now)
	delete(next, key)
	if now.Before(d.Until) {
		if len(next) >= mostKeys {
			return fmt.Errorf("%d keys are limited by an operator, and no more can be: resume one of them first", mostKeys)
		}
		next[key] = d
	}
	if len(next) == 0 {
		g.decided.Store(nil)
		return nil
	}
	g.decided.Store(&next)
	return nil
}

// Decisions returns those that have not ended.
func (g *Gate) Decisions() map[string]Decision { return g.decisions(time.Now()) }

func (g *Gate) decisions(now time.Time) map[string]Decision {
	all := map[string]Decision{}
	if present := g.decided.Load(); present != nil {
		maps.Copy(all, *present)
	}
	maps.DeleteFunc(all, func(_ string, d Decision) bool { return !now.Before(d.Until) })
	return all
}

// Decided returns the decision about a key that has not ended. Where there is none, it costs one atomic load.
func (g *Gate) Decided(key string, now time.Time) (d Decision, found bool) {
	present := g.decided.Load()
	if present == nil {
		return Decision{}, false
	}
	d, found = (*present)[key]
	return d, found && now.Before(d.Until)
}

// Keys are the keys of the handler that are limited, then those whose messages had to wait most often.
func (g *Gate) Keys() (all []Key) {
	decided := g.Decisions()
	if w := g.Watcher(); w != nil {
		all = w.Keys()
	}
	for i := range all {
		if d, found := decided[all[i].Key]; found {
			all[i].Paused, all[i].Until, all[i].Limit = string(Operator), d.Until, d.Limit
			delete(decided, all[i].Key)
		}
	}
	for key, d := range decided { // no message of it has come
		all = append(all, Key{Key: key, Paused: string(Operator), Until: d.Until, Limit: d.Limit})
	}
	rank := func(k Key) int { // decisions of an operator first: no flood of keys may hide them
		switch k.Paused {
		case string(Operator):
			return 0
		case "":
			return 2
		default:
			return 1
		}
	}
	slices.SortFunc(all, func(a, b Key) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Parked, a.Parked), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(len(all), mostKeys)]
}
