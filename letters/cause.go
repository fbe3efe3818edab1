package letters

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

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

// causeOf returns the cause of a letter.
func causeOf(l *Letter) Cause {
	return Cause{l.Record.DeadReason, l.Record.ErrorType, normalise(l.Record.Reason)}
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

// Groups groups letters by their cause. Its memory does not depend on the number of letters. The zero value is ready.
// It is not safe for concurrent use.
type Groups struct {
	groups map[Cause]*Group
	other  *Group
}

// Add adds a letter.
func (g *Groups) Add(l *Letter) {
	cause := causeOf(l)
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

// varying is what differs between two failures with the same cause, in the order in which normalise replaces it. A
// pattern matches only a text with at least so many of the characters: to count them is faster than to match.
var varying = []struct {
	times       int
	characters  string
	pattern     *regexp.Regexp
	replacement string
}{
	{2, "-/", regexp.MustCompile(`\b\d{4}[-/]\d{2}[-/]\d{2}` +
		`([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?` +
		`(Z|( ?[+-]\d{2}:?\d{2})?( UTC)?( m=[+-]\d+\.\d+)?))?`), "<time>"},
	{2, ":", regexp.MustCompile(`\b(\w{3}, )?\d{1,2}[ -]` +
		`(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ -]\d{2,4} \d{2}:\d{2}:\d{2}( [A-Z]{3}| [+-]\d{4})?`),
		"<time>"},
	{2, ":", regexp.MustCompile(`\b\d{1,2}:\d{2}:\d{2}([.,]\d+)?\b`), "<time>"},
	{3, ".", regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b`), "<ip>"},
	{1, "[", regexp.MustCompile(`\[[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(%\w+)?\]`), "<ip>"},
	{4, "-", regexp.MustCompile(`\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`), "<n>"},
	{1, "smhd", regexp.MustCompile(`\b(\d+(\.\d+)?(ns|us|µs|μs|ms|s|m|h|d)){1,6}\b`), "<n>"},
	{1, digits, regexp.MustCompile(`\b\d+(\.\d+)?([eE][+-]?\d+)?([kKMGT]i?)?(B|bytes)?\b`), "<n>"},
	{1, digits, regexp.MustCompile(`\b\w*\d\w*\b`), "<n>"},
}

const digits = "0123456789"

// recovererStack is where the text of Watermill's Recoverer goes on with a stack. A PoisonQueue records it.
const recovererStack = ", stacktrace:"

// normalise replaces what differs between failures with the same cause: numbers, sizes, durations and ids (UUIDs, and
// words with digits) by <n>, times and dates by <time>, and IP addresses by <ip>. White space becomes one space.
// Numbers and ids are not kept apart, because some ids of a cause have only digits. The stack in the text of
// Watermill's Recoverer is left out.
func normalise(reason string) string {
	reason, _, _ = strings.Cut(reason, recovererStack)
	for _, v := range varying {
		if hasTimes(reason, v.characters, v.times) {
			reason = v.pattern.ReplaceAllString(reason, v.replacement)
		}
	}
	return strings.Join(strings.Fields(reason), " ")
}

// hasTimes reports whether a text has at least so many of the characters.
func hasTimes(text, characters string, times int) bool {
	for ; times > 0; times-- {
		at := strings.IndexAny(text, characters)
		if at < 0 {
			return false
		}
		text = text[at+1:]
	}
	return true
}
