package gate

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// MostKeys is how many keys of a handler are described, and how many an operator can limit at the same time: no other
// ones hide them.
const MostKeys = 20

// Limited is why an operator's key is limited that is not paused.
const Limited Reason = "limited"

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
	Limit int       // calls at the same time; 0: the key is paused; less than 0: no limit
	Until time.Time // when it ends
}

// Decide replaces what an operator has decided about keys of the handler.
func (g *Gate) Decide(all map[string]Decision) { g.decided.Store(&all) }

// Decided returns the decision about a key that has not ended.
func (g *Gate) Decided(key string, now time.Time) (d Decision, found bool) {
	if present := g.decided.Load(); present != nil {
		d, found = (*present)[key]
	}
	return d, found && d.Limit >= 0 && now.Before(d.Until)
}

// Keys are the keys of the handler that are limited, then those whose messages had to wait most often.
func (g *Gate) Keys() (all []Key) {
	if w := g.Watcher(); w != nil {
		all = w.Keys()
	}
	if present := g.decided.Load(); present != nil {
		for key := range *present {
			d, found := g.Decided(key, time.Now())
			if !found {
				continue
			}
			at := slices.IndexFunc(all, func(k Key) bool { return k.Key == key })
			if at < 0 { // no message of it had to wait
				at, all = len(all), append(all, Key{Key: key})
			}
			all[at].Paused, all[at].Until, all[at].Limit = string(Operator), d.Until, d.Limit
			if d.Limit > 0 {
				all[at].Paused = string(Limited)
			}
		}
	}
	slices.SortFunc(all, Key.Compare)
	return all[:min(len(all), MostKeys)]
}

// Compare orders keys: an operator's decisions first, as no flood of keys may hide them, then what else is limited. Of
// these, those whose messages had to wait most often are first.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.rank(), other.rank()), cmp.Compare(other.Parked, k.Parked), cmp.Compare(k.Key, other.Key))
}

func (k Key) rank() int {
	switch k.Paused {
	case string(Operator), string(Limited):
		return 0
	case "":
		return 2
	default:
		return 1
	}
}
