package retry

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// A row of the record's table is one metadata key, and what it has to do with the field that value points to.
type row struct {
	key string
	// value is a *string, *DeadReason, *int, *time.Time or *time.Duration. Where it is nil, the table has only the key.
	value   any
	most    int  // the highest count that is believed
	dead    bool // read in dead letters only
	poison  bool // whether Watermill's poison queue has it: written in dead letters only, and never removed
	repeats bool // written for readers of other libraries, and not read
}

// recordKeys are the keys of the table.
var recordKeys = func() (keys []string) {
	for _, row := range new(Record).rows() {
		keys = append(keys, row.key)
	}
	return keys
}()

// RecordKeys returns the metadata keys of the failure record, the most important first: those of Record's fields, those
// of Watermill's poison queue and those of Watermill's components/delay. Code that has to shorten a record drops keys
// from the end. Code that copies metadata selectively keeps all of them.
func RecordKeys() []string { return slices.Clone(recordKeys) }

// name returns the name of the field in the record's text.
func (w *row) name() string {
	return strings.TrimSuffix(strings.TrimPrefix(w.key, "retry_"), "_poisoned")
}

// isText reports whether the field is a text, which can always be read.
func (w *row) isText() bool {
	switch w.value.(type) {
	case *string, *DeadReason:
		return true
	}
	return false
}

// text returns the value of the field, or "" for none.
func (w *row) text() string {
	switch value := w.value.(type) {
	case *string:
		return *value
	case *DeadReason:
		return string(*value)
	case *time.Time:
		return formatTime(*value)
	case *int:
		if *value > 0 {
			return strconv.Itoa(*value)
		}
	case *time.Duration:
		if *value > 0 {
			return value.String()
		}
	}
	return ""
}

// read sets the field, and reports whether the text is a value that is believed.
func (w *row) read(text string, latest time.Time) bool {
	switch value := w.value.(type) {
	case *string:
		*value = text
	case *DeadReason:
		*value = DeadReason(text)
	case *time.Time:
		at, err := time.Parse(time.RFC3339, text) // with fractions of a second too, and faster than timeLayout
		*value = at.UTC()
		return err == nil && !at.After(latest)
	case *int:
		n, err := strconv.Atoi(text)
		*value = n
		return err == nil && n >= 0 && n <= w.most
	case *time.Duration:
		d, err := time.ParseDuration(text)
		*value = d
		return err == nil && d >= 0 && d <= backoff.MaxDelay
	}
	return true
}

// traceContext returns a text that can be a trace context, else nothing: anybody can write the key.
func traceContext(text string) string {
	for _, char := range []byte(text) {
		if char < ' ' || char > '~' {
			return ""
		}
	}
	if len(text) > maxTraceparent {
		return ""
	}
	return text
}

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// formatTime formats as timeLayout, in a fifth of the time of Format: a failure has four times.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.Format(timeLayout)
	}
	hour, minute, second := t.Clock()
	text := [...]byte{
		'0', '0', '0', '0', '-', '0', '0', '-', '0', '0', 'T',
		'0', '0', ':', '0', '0', ':', '0', '0', '.', '0', '0', '0', 'Z',
	}
	for _, number := range [...]struct{ end, value int }{
		{4, year}, {7, int(month)}, {10, day}, {13, hour}, {16, minute}, {19, second}, {23, t.Nanosecond() / 1e6},
	} {
		for at, rest := number.end-1, number.value; rest > 0; at, rest = at-1, rest/10 {
			text[at] += byte(rest % 10)
		}
	}
	return string(text[:])
}
