package simulation

import (
	"regexp"
	"strings"
	"weak"
)

// result is what a run has shown.
type result struct {
	violations []violation
	trace      string

	connections []weak.Pointer[byte] // the connections that are closed
}

// violation is what must not be.
type violation struct {
	about string // the message, or empty
	text  string
}

const (
	screenLines = 40
	screenWidth = 160
)

// notable are the lines of a trace that each screen has.
var notable = regexp.MustCompile(
	`VIOLATION|fault|another client|alarm|policy|the node|error|ERROR|timeout|did not start`)

// screen is the end of the trace up to the first violation, of the lines that matter: those about its message, the
// faults, and where it is about no message the last ones.
func (r result) screen() string {
	lines := strings.Split(strings.TrimSpace(r.trace), "\n")
	if len(r.violations) == 0 {
		return strings.Join(lines[max(0, len(lines)-screenLines):], "\n") + "\n"
	}
	about := r.violations[0].about
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(about) + `\b`)
	var kept []string
	for _, line := range lines {
		_, said, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if about == "" || notable.MatchString(said) || word.MatchString(said) {
			kept = append(kept, line[:min(len(line), screenWidth)])
		}
		if strings.Contains(line, r.violations[0].text) {
			break
		}
	}
	return strings.Join(kept[max(0, len(kept)-screenLines):], "\n") + "\n"
}
