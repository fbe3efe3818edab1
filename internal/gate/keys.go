package gate

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tieredretry/watermill-retry/retry"
)

// MostKeys is how many keys of a handler are described, and how many an operator can limit at the same time: no other
// ones hide them.
const MostKeys = 20

// Limited is why an operator's key is limited that is not paused.
const Limited Reason = "limited"

// KeyState is one key of a handler, and its state.
type KeyState struct {
	Key string
	retry.KeyHealth
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

	Before *Decision // the decision before, which holds again when this one ends first; nil: none
}

// Decide replaces what an operator has decided about keys of the handler.
func (g *Gate) Decide(all map[string]Decision) { g.decided.Store(&all) }

// Decided returns the decision about a key that has not ended.
func (g *Gate) Decided(key string, now time.Time) (d Decision, found bool) {
	for d = (*g.decided.Load())[key]; d.Before != nil && !now.Before(d.Until); {
		d = *d.Before
	}
	return d, d.Limit >= 0 && now.Before(d.Until)
}

// Keys are the keys of the handler that are limited, then those whose messages had to wait most often.
func (g *Gate) Keys() (sorted []KeyState) {
	all := map[string]retry.KeyHealth{}
	if w := g.Watcher(); w != nil {
		all = w.Keys()
	}
	for key := range *g.decided.Load() {
		if d, found := g.Decided(key, time.Now()); found {
			why := map[bool]Reason{true: Limited, false: Operator}[d.Limit > 0]
			all[key] = retry.KeyHealth{Paused: string(why), Until: d.Until, Limit: d.Limit, Parked: all[key].Parked}
		}
	}
	for key, health := range all {
		sorted = append(sorted, KeyState{key, health})
	}
	slices.SortFunc(sorted, KeyState.Compare)
	return sorted[:min(len(sorted), MostKeys)]
}

// Compare orders keys: an operator's decisions first, as no flood of keys may hide them, then what else is limited. Of
// these, those whose messages had to wait most often are first.
func (k KeyState) Compare(other KeyState) int {
	return cmp.Or(cmp.Compare(ranks[k.Paused], ranks[other.Paused]), cmp.Compare(other.Parked, k.Parked),
		cmp.Compare(k.Key, other.Key))
}

// ranks are those of the states of keys; 0: all others, which limit a key.
var ranks = map[string]int{string(Operator): -1, string(Limited): -1, "": 1}
