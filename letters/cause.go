package letters

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/middleware"
)

// maxCauses bounds the causes that Groups keeps apart. Letters with further ones count as other.
const maxCauses = 1000

// Cause is what letters of one group have in common.
type Cause struct {
	DeadReason middleware.DeadReason `json:"dead_reason,omitzero"`
	ErrorType  string                `json:"error_type,omitzero"`
	Reason     string                `json:"reason,omitzero"` // normalised
}

// CauseOf returns the cause of a letter.
func CauseOf(l *Letter) Cause {
	return Cause{l.Record.DeadReason, l.Record.ErrorType, Normalise(l.Record.Reason)}
}

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

// Groups groups letters by their cause. Its memory does not depend on the number of letters. The zero value is ready. It is not safe
// for concurrent use.
type Groups struct {
	groups map[Cause]*Group
	other  *Group
}

// Add adds a letter.
func (g *Groups) Add(l *Letter) {
	cause := CauseOf(l)
	group := g.groups[cause]
	switch {
	case group != nil:
	case len(g.groups) < maxCauses:
		if g.groups == nil {
			g.groups = map[Cause]*Group{}
		}
		group = &Group{Cause: cause, Example: l.ID}
		g.groups[cause] = group
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

// What differs between two failures with the same cause, in the order in which Normalise replaces it.
var varying = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?(Z|[+-]\d{2}:?\d{2})?`), "<time>"},
	{regexp.MustCompile(`\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`), "<id>"},
	{regexp.MustCompile(`\b0x[0-9a-fA-F]+\b`), "<id>"},
	{regexp.MustCompile(`\b\w*\d\w*\b`), "<id>"},
}

// number is a word that starts with a digit, such as 12, 3.5 or 10s. Other words with a digit in them are ids.
var number = regexp.MustCompile(`^[0-9]+[a-zA-Zµ%]{0,3}$`)

// Normalise replaces what differs between failures with the same cause: numbers by <n>, ids (words with letters and digits) by <id>,
// times by <time>. White space becomes one space.
func Normalise(reason string) string {
	for i, v := range varying {
		if i < len(varying)-1 {
			reason = v.pattern.ReplaceAllString(reason, v.replacement)
			continue
		}
		reason = v.pattern.ReplaceAllStringFunc(reason, func(word string) string {
			if number.MatchString(word) {
				return "<n>"
			}
			return v.replacement
		})
	}
	return strings.Join(strings.Fields(reason), " ")
}
