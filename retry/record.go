package retry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// TraceparentKey is the metadata key of the trace of the last failed attempt that an Observer has traced: W3C Trace
// Context. It is that of Record.Traceparent.
const TraceparentKey = "retry_traceparent"

const (
	timeLayout = "2006-01-02T15:04:05.000Z07:00"

	// maxTraceparent is the length of version 00 of W3C Trace Context, with room for a later version.
	maxTraceparent = 128

	// maxFailures is more than any schedule can count.
	maxFailures = 2 * backoff.MaxRetries

	// maxCount is more than any message is snoozed or redriven.
	maxCount = 1 << 30
)

// delayKeys are those of Watermill's components/delay. Pub/Subs that delay messages by themselves use them.
var delayKeys = []string{delay.DelayedUntilKey, delay.DelayedForKey}

// recordKeys are all keys of the record, the most important first. A copy needs the first three to be counted or read
// as a dead letter. Dead letters also carry the keys of Watermill's poison queue, for readers of poison queues.
var recordKeys = []string{
	recordkey.DeadReason, recordkey.Failures, recordkey.Topic, recordkey.LeftOff, recordkey.Remaining,
	recordkey.Snoozes, recordkey.DueAt, recordkey.LastFailedAt, recordkey.FirstFailedAt, recordkey.FirstArrivedAt,
	recordkey.Handler, recordkey.ErrorType, TraceparentKey,
	poison.PoisonedTopicKey, poison.PoisonedHandlerKey, poison.PoisonedSubscriberKey,
	recordkey.Reason, poison.ReasonForPoisonedKey,
	delay.DelayedUntilKey, delay.DelayedForKey,
}

// RecordKeys returns the metadata keys of the failure record, the most important first: those of Record's fields, those
// of Watermill's poison queue and those of Watermill's components/delay. Code that has to shorten a record drops keys
// from the end. Code that copies metadata selectively keeps all of them.
func RecordKeys() []string { return slices.Clone(recordKeys) }

// Record is the failure record of a message. It travels with the message and stays with the dead letter. Its JSON
// leaves out what is zero.
type Record struct {
	Failures       int           `json:"failures"`                  // how often the message has failed; 0 if it was only snoozed or delayed
	Snoozes        int           `json:"snoozes,omitzero"`          // how often it was snoozed
	FirstArrivedAt time.Time     `json:"first_arrived_at,omitzero"` // in UTC; zero where it had not to wait at its first arrival
	FirstFailedAt  time.Time     `json:"first_failed_at,omitzero"`  // in UTC
	LastFailedAt   time.Time     `json:"last_failed_at,omitzero"`   // in UTC
	DueAt          time.Time     `json:"due_at,omitzero"`           // zero in dead letters; by the clock of the host where it failed
	Remaining      time.Duration `json:"remaining,omitzero"`        // what remains of a requested delay after the present tier, in ns as JSON
	Reason         string        `json:"reason,omitzero"`           // the text of the last error
	ErrorType      string        `json:"error_type,omitzero"`       // the Go type of the last error's root
	Traceparent    string        `json:"traceparent,omitzero"`      // of the last failed attempt that was traced: see TraceparentKey
	Topic          string        `json:"topic,omitzero"`            // the topic it failed on
	Handler        string        `json:"handler,omitzero"`          // the handler that failed
	Subscriber     string        `json:"subscriber,omitzero"`       // the subscriber's Go type; in dead letters only
	DeadReason     DeadReason    `json:"dead_reason,omitzero"`      // empty while the message is being retried
	// LeftOff is what a dead letter in its last form lacks, and why. Empty: it is whole. On other backends than
	// RabbitMQ nothing is left off, and LeftOff is why the publisher refused the letter once.
	LeftOff string `json:"left_off,omitzero"`
}

// ReadRecord reads the failure record of a message. It returns false where there is none or it is garbled: a count that
// is no number, is negative or is beyond any schedule, a time that cannot be read or lies more than backoff.MaxDelay
// ahead, a remaining delay that is not between 0 and backoff.MaxDelay. What a marshaler had to leave out to make the
// message fit is zero. Inside a handler it reports how often the message has failed before.
func ReadRecord(metadata message.Metadata) (Record, bool) {
	var record Record
	if !record.read(metadata, time.Now()) {
		return Record{}, false
	}
	return record, true
}

// read reads the record into r. Where it returns false, r is not to be used.
func (r *Record) read(metadata message.Metadata, now time.Time) bool {
	count, found := metadata[recordkey.Failures]
	if !found || !readCount(&r.Failures, count, maxFailures) {
		return false
	}
	if count, found := metadata[recordkey.Snoozes]; found && !readCount(&r.Snoozes, count, maxCount) {
		return false
	}
	if rest, found := metadata[recordkey.Remaining]; found {
		var err error
		if r.Remaining, err = time.ParseDuration(rest); err != nil || r.Remaining < 0 ||
			r.Remaining > backoff.MaxDelay {
			return false
		}
	}
	r.Reason, r.ErrorType = metadata[recordkey.Reason], metadata[recordkey.ErrorType]
	r.Traceparent = metadata[TraceparentKey]
	r.Topic, r.Handler = metadata[recordkey.Topic], metadata[recordkey.Handler]
	r.DeadReason = DeadReason(metadata[recordkey.DeadReason])
	if r.DeadReason != "" {
		r.Subscriber, r.LeftOff = metadata[poison.PoisonedSubscriberKey], metadata[recordkey.LeftOff]
	}
	latest := now.Add(backoff.MaxDelay)
	return readTime(&r.FirstArrivedAt, metadata, recordkey.FirstArrivedAt, latest) &&
		readTime(&r.FirstFailedAt, metadata, recordkey.FirstFailedAt, latest) &&
		readTime(&r.LastFailedAt, metadata, recordkey.LastFailedAt, latest) &&
		readTime(&r.DueAt, metadata, recordkey.DueAt, latest)
}

func readCount(count *int, text string, most int) bool {
	n, err := strconv.Atoi(text)
	*count = n
	return err == nil && n >= 0 && n <= most
}

// readTime reports whether the time can be read, or is not there.
func readTime(at *time.Time, metadata message.Metadata, key string, latest time.Time) bool {
	text, found := metadata[key]
	if !found {
		return true
	}
	parsed, err := time.Parse(timeLayout, text)
	if err != nil || parsed.After(latest) {
		return false
	}
	*at = parsed.UTC()
	return true
}

// Write replaces the failure record in metadata. The map must not be shared with another message. A record with a dead
// reason is also written in the keys of Watermill's poison queue; one that waits, in those of Watermill's
// components/delay.
func (r Record) Write(metadata message.Metadata) {
	delete(metadata, recordkey.UnmarshalError) // the properties stay: the marshaler of the copy needs it
	set := func(key, value string) {
		if value != "" {
			metadata[key] = value
		} else {
			delete(metadata, key)
		}
	}
	set(recordkey.Failures, strconv.Itoa(r.Failures))
	set(recordkey.FirstArrivedAt, formatTime(r.FirstArrivedAt))
	set(recordkey.FirstFailedAt, formatTime(r.FirstFailedAt))
	set(recordkey.LastFailedAt, formatTime(r.LastFailedAt))
	set(recordkey.DueAt, formatTime(r.DueAt))
	set(recordkey.Snoozes, positive(r.Snoozes))
	set(recordkey.Remaining, durationText(r.Remaining))
	set(recordkey.Reason, r.Reason)
	set(recordkey.ErrorType, r.ErrorType)
	set(TraceparentKey, traceContext(r.Traceparent))
	set(recordkey.Topic, r.Topic)
	set(recordkey.Handler, r.Handler)
	set(recordkey.DeadReason, string(r.DeadReason))
	set(recordkey.LeftOff, r.LeftOff)
	if r.DeadReason != "" {
		r.writePoison(metadata)
	}
	r.writeDelay(metadata)
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

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func durationText(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return d.String()
}

// writePoison writes the keys of Watermill's poison queue. Those without a value stay as they are.
func (r *Record) writePoison(metadata message.Metadata) {
	for _, poisoned := range [...]struct{ key, value string }{
		{poison.ReasonForPoisonedKey, r.Reason}, {poison.PoisonedTopicKey, r.Topic}, {poison.PoisonedHandlerKey,
			r.Handler},
		{poison.PoisonedSubscriberKey, r.Subscriber},
	} {
		if poisoned.value != "" {
			metadata[poisoned.key] = poisoned.value
		}
	}
}

// writeDelay writes the due time in the keys of components/delay, rounded up: its own helper cuts to whole seconds,
// which would be early.
func (r *Record) writeDelay(metadata message.Metadata) {
	if r.DueAt.IsZero() {
		for _, key := range delayKeys {
			delete(metadata, key)
		}
		return
	}
	until := r.DueAt.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
	metadata[delay.DelayedUntilKey] = formatTime(until)
	metadata[delay.DelayedForKey] = max(time.Until(r.DueAt).Round(time.Millisecond), 0).String()
}

// String returns the fields that are set, as name=value.
func (r Record) String() string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "failures=%d", r.Failures)
	for _, field := range []struct{ name, value string }{
		{"first_arrived_at", formatTime(r.FirstArrivedAt)}, {"first_failed_at", formatTime(r.FirstFailedAt)},
		{"last_failed_at", formatTime(r.LastFailedAt)}, {"due_at", formatTime(r.DueAt)},
		{"snoozes", positive(r.Snoozes)}, {"remaining", durationText(r.Remaining)},
		{"topic", r.Topic}, {"handler", r.Handler}, {"subscriber", r.Subscriber},
		{"error_type", r.ErrorType}, {"traceparent", r.Traceparent}, {"dead_reason", string(r.DeadReason)}, {"left_off",
			r.LeftOff}, {"reason", r.Reason},
	} {
		if field.value != "" {
			_, _ = fmt.Fprintf(&text, " %s=%q", field.name, field.value)
		}
	}
	return text.String()
}

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
		'0', '0', '0', '0', '-', '0', '0', '-', '0', '0', 'T', '0', '0', ':', '0', '0', ':', '0', '0', '.', '0', '0', '0', 'Z',
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
