package letters

import (
	"cmp"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/internal/cause"
	"github.com/tieredretry/watermill-retry/retry"
)

// maxCauses bounds the causes that Groups keeps apart. Letters with further ones count as other.
const maxCauses = 1000

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
	// Other is true for the letters of all causes beyond the first 1,000.
	Other bool `json:"other,omitzero"`
}

// Groups groups letters by their cause. Its memory does not depend on the number of letters. The zero value is ready.
// It is not safe for concurrent use.
type Groups struct {
	groups map[Cause]*Group
	other  *Group
}

// Add adds a letter.
func (g *Groups) Add(l *Letter) {
	of := l.Cause()
	group := g.groups[of]
	switch {
	case group != nil:
	case len(g.groups) < maxCauses:
		if g.groups == nil {
			g.groups = map[Cause]*Group{}
		}
		group = &Group{Cause: of, Example: l.ID}
		g.groups[of] = group
	default:
		if g.other == nil {
			g.other = &Group{Example: l.ID, Other: true}
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
}

// Sorted returns the groups, the largest first. The other letters are the last.
func (g *Groups) Sorted() []Group {
	sorted := make([]Group, 0, len(g.groups)+1)
	for _, group := range g.groups {
		sorted = append(sorted, *group)
	}
	slices.SortFunc(sorted, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.DeadReason, b.DeadReason),
			cmp.Compare(a.ErrorType, b.ErrorType), cmp.Compare(a.Reason, b.Reason))
	})
	if g.other != nil {
		sorted = append(sorted, *g.other)
	}
	return sorted
}
