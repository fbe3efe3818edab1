package letters

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// A Filter selects letters: those for which all of its fields are true. The zero Filter selects all.
type Filter struct {
	// IDs are the letters to select.
	IDs []string
	// Reason matches a part of the record's reason.
	Reason *regexp.Regexp
	// ErrorType is the record's error type, such as "syscall.Errno" of a connection that was refused.
	ErrorType string
	// DeadReason is the record's dead reason, such as "exhausted".
	DeadReason string
	// Handler is the handler that failed.
	Handler string
	// Cause is the ID of a Cause.
	Cause string
	// OlderThan and NewerThan select by the time since the letter was given up, by the clock of this host. A letter
	// without such a time is neither: a discard of old letters must not remove one whose age is unknown.
	OlderThan, NewerThan time.Duration
	// Metadata are values that the letter's metadata has. "retry_key" is the record's key, such as a tenant: see
	// retry.Breaker.Key.
	Metadata map[string]string
}

// Validate reports all faults of the filter.
func (f Filter) Validate() error {
	return errors.Join(
		faults.If(f.Cause != "" && (len(f.Cause) != 8 || strings.Trim(f.Cause, "0123456789abcdef") != ""),
			"Filter.Cause is %q: it must be the ID of a cause, which is 8 hex digits, such as 8801ed07", f.Cause),
		faults.If(f.OlderThan < 0, "Filter.OlderThan is %v: it must not be negative", f.OlderThan),
		faults.If(f.NewerThan < 0, "Filter.NewerThan is %v: it must not be negative", f.NewerThan),
		faults.If(f.NewerThan > 0 && f.OlderThan >= f.NewerThan, "Filter.OlderThan is %v and Filter.NewerThan is %v: "+
			"they select no letter, because Filter.NewerThan must be the longer one", f.OlderThan, f.NewerThan),
	)
}

// Match reports whether the filter selects a letter.
func (f Filter) Match(l *Letter, now time.Time) bool {
	dead := l.DeadAt()
	if len(f.IDs) > 0 && !slices.Contains(f.IDs, l.ID) ||
		f.Reason != nil && !f.Reason.MatchString(l.Record.Reason) ||
		f.ErrorType != "" && f.ErrorType != l.Record.ErrorType ||
		f.DeadReason != "" && f.DeadReason != string(l.Record.DeadReason) ||
		f.Handler != "" && f.Handler != l.Record.Handler ||
		f.Cause != "" && f.Cause != l.Cause().ID() ||
		f.OlderThan > 0 && (dead.IsZero() || now.Sub(dead) < f.OlderThan) ||
		f.NewerThan > 0 && (dead.IsZero() || now.Sub(dead) > f.NewerThan) {
		return false
	}
	for key, want := range f.Metadata {
		have, found := l.Metadata[key]
		if key == recordkey.Key {
			have, found = l.Record.Key, true
		}
		if !found || have != want {
			return false
		}
	}
	return true
}
