package letters

import (
	"cmp"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/internal/cause"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// maxCauses bounds the causes that Groups keeps apart. Letters with further ones count as other.
	maxCauses = 1000
	// maxKeys bounds the keys that Groups counts for each of them, and shownKeys those that it returns.
	maxKeys, shownKeys = 100, 20
	// maxKey is how many bytes a key of the record has.
	maxKey = 255
)

// Cause is what letters of one group have in common.
type Cause struct {
	DeadReason retry.DeadReason `json:"dead_reason,omitzero"`
	ErrorType  string           `json:"error_type,omitzero"`
	Reason     string           `json:"reason,omitzero"` // normalised
}

// Cause returns what the letter has in common with others.
func (l *Letter) Cause() Cause {
	return Cause{l.Record.DeadReason, l.Record.ErrorType, cause.Normalise(l.Record.Reason)}
}

// ID returns 8 hex digits of the error type and the reason. The log line of a dead letter has the same as its cause.
// It is computed, and not stored: old letters have it too. Letters that differ only in their dead reason share it.
func (c Cause) ID() string { return cause.ID(c.ErrorType, c.Reason) }

// A Group is the letters of a queue with the same cause.
type Group struct {
	Cause
	Count   int       `json:"count"`
	First   time.Time `json:"first_dead_at,omitzero"` // when the first of them was given up
	Last    time.Time `json:"last_dead_at,omitzero"`  // and the last
	Example string    `json:"example"`                // the ID of one letter
	// Keys are how many of the letters have which key of retry.Breaker.Key: the 20 largest, and as "" those that have
	// another key. They are exact for up to 100 keys. With more, a key has so many letters at least, and at most 1% of
	// all letters more.
	Keys map[string]int `json:"keys,omitempty"`
	// Other is true for the letters of all causes beyond the first 1,000.
	Other bool `json:"other,omitzero"`
}

// Groups groups letters by their cause. Its memory does not depend on the number of letters. The zero value is ready.
// It is not safe for concurrent use.
type Groups struct {
	groups map[Cause]*counted
	other  *counted
}

// counted is a group with the counts of its keys.
type counted struct {
	Group
	keyed int // letters with a key
	keys  map[string]int
}

// Add adds a letter.
func (g *Groups) Add(l *Letter) {
	of := l.Cause()
	group := g.groups[of]
	switch {
	case group != nil:
	case len(g.groups) < maxCauses:
		if g.groups == nil {
			g.groups = map[Cause]*counted{}
		}
		group = &counted{Group: Group{Cause: of, Example: l.ID}, keys: map[string]int{}}
		g.groups[of] = group
	default:
		if g.other == nil {
			g.other = &counted{Group: Group{Example: l.ID, Other: true}, keys: map[string]int{}}
		}
		group = g.other
	}
	group.Count++
	if at := l.DeadAt(); !at.IsZero() {
		if group.First.IsZero() || at.Before(group.First) {
			group.First = at
		}
		if at.After(group.Last) {
			group.Last = at
		}
	}
	group.addKey(l.Record.Key)
}

// addKey counts a key. Where it has no place, each of maxKeys keys loses one letter (the algorithm of Misra and Gries):
// so each loses fewer than 1 of maxKeys letters, whichever keys come, and in whichever order.
func (g *counted) addKey(key string) {
	if key == "" {
		return
	}
	g.keyed++
	switch _, found := g.keys[key]; {
	case len(key) > maxKey: // no key of the library
	case found, len(g.keys) < maxKeys:
		g.keys[key]++
	default:
		for other := range g.keys {
			if g.keys[other]--; g.keys[other] == 0 {
				delete(g.keys, other)
			}
		}
	}
}

// sorted returns the group, with its largest keys.
func (g *counted) sorted() Group {
	group, others := g.Group, g.keyed
	if others > 0 {
		group.Keys = map[string]int{}
	}
	for _, key := range lettertext.Largest(g.keys, shownKeys) {
		group.Keys[key] = g.keys[key]
		others -= g.keys[key]
	}
	if others > 0 {
		group.Keys[""] = others
	}
	return group
}

// Sorted returns the groups, the largest first. The other letters are the last.
func (g *Groups) Sorted() []Group {
	sorted := make([]Group, 0, len(g.groups)+1)
	for _, group := range g.groups {
		sorted = append(sorted, group.sorted())
	}
	slices.SortFunc(sorted, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.DeadReason, b.DeadReason),
			cmp.Compare(a.ErrorType, b.ErrorType), cmp.Compare(a.Reason, b.Reason))
	})
	if g.other != nil {
		sorted = append(sorted, g.other.sorted())
	}
	return sorted
}
