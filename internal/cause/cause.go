// Package cause says which failures have the same cause: by the type of their error, and by its text without what
// differs each time. The middleware logs the ID of a cause, and letters are grouped and found by it.
package cause

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"sync"
)

// ID returns 8 hex digits of an error type and a normalised reason.
func ID(errorType, normalised string) string {
	sum := sha256.Sum256([]byte(errorType + "\x00" + normalised))
	return hex.EncodeToString(sum[:4])
}

// varying is what differs between two failures with the same cause, in the order in which Normalise replaces it. A
// pattern matches only a text with at least so many of the characters: to count them is faster than to match.
// They are compiled when the first reason is normalised: most processes that import this package have none.
var varying = sync.OnceValue(func() []variation {
	return []variation{
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
})

type variation struct {
	times       int
	characters  string
	pattern     *regexp.Regexp
	replacement string
}

const digits = "0123456789"

// recovererStack is where the text of Watermill's Recoverer goes on with a stack. A PoisonQueue records it.
const recovererStack = ", stacktrace:"

// Normalise replaces what differs between failures with the same cause: numbers, sizes, durations and ids (UUIDs, and
// words with digits) by <n>, times and dates by <time>, and IP addresses by <ip>. White space becomes one space.
// Numbers and ids are not kept apart, because some ids of a cause have only digits. The stack in the text of
// Watermill's Recoverer is left out.
func Normalise(reason string) string {
	reason, _, _ = strings.Cut(reason, recovererStack)
	for _, v := range varying() {
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
