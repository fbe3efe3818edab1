package retry

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

const (
	// maxTraceparent is the length of version 00 of W3C Trace Context, with room for a later version.
	maxTraceparent = 128

	// maxFailures is more than any schedule can count.
	maxFailures = 2000 // twice the retries of the longest schedule

	// maxCount is more than any message is snoozed.
	maxCount = 1 << 30
)

// Record is the failure record of a message. It travels with the message and stays with the dead letter. Its JSON
// leaves out what is zero.
type Record struct {
	Failures       int           `json:"failures"`                  // 0 if it was only snoozed or delayed
	Snoozes        int           `json:"snoozes,omitzero"`          // how often it was snoozed
	FirstArrivedAt time.Time     `json:"first_arrived_at,omitzero"` // in UTC; zero: it had not to wait then
	FirstFailedAt  time.Time     `json:"first_failed_at,omitzero"`  // in UTC
	LastFailedAt   time.Time     `json:"last_failed_at,omitzero"`   // in UTC
	DueAt          time.Time     `json:"due_at,omitzero"`           // zero in dead letters; by the clock of its host
	Remaining      time.Duration `json:"remaining,omitzero"`        // what remains of a requested delay; JSON: in ns
	Reason         string        `json:"reason,omitzero"`           // the text of the last error
	ErrorType      string        `json:"error_type,omitzero"`       // the Go type of the last error's root
	Traceparent    string        `json:"traceparent,omitzero"`      // the trace of the last failed attempt that has one
	Topic          string        `json:"topic,omitzero"`            // the topic it failed on
	Handler        string        `json:"handler,omitzero"`          // the handler that failed
	Key            string        `json:"key,omitzero"`              // what Breaker.Key returned; at most 255 bytes
	Subscriber     string        `json:"subscriber,omitzero"`       // its subscriber's type; in dead letters only
	DeadReason     DeadReason    `json:"dead_reason,omitzero"`      // empty while the message is being retried
	// LeftOff is what a dead letter in its last form lacks, and why. Empty: it is whole. On other backends than
	// RabbitMQ nothing is left off, and LeftOff is why the publisher refused the letter once.
	LeftOff string `json:"left_off,omitzero"`
}

// rows is the table of the record: one row for each metadata key, the most important first. A copy needs the first
// three to be counted or read as a dead letter. A new field of Record needs a row here, its key with a letter in
// recordkey, and the key in docs/outcomes.md: all else that reads, writes, removes, cuts or prints the record has it
// from here.
//
// Dead letters also carry the keys of Watermill's poison queue, for readers of poison queues.
func (r *Record) rows() [21]row {
	return [...]row{
		{key: recordkey.DeadReason, value: &r.DeadReason},
		{key: recordkey.Failures, value: &r.Failures, most: maxFailures},
		{key: recordkey.Topic, value: &r.Topic},
		{key: recordkey.LeftOff, value: &r.LeftOff, dead: true},
		{key: recordkey.Remaining, value: &r.Remaining},
		{key: recordkey.Snoozes, value: &r.Snoozes, most: maxCount},
		{key: recordkey.DueAt, value: &r.DueAt},
		{key: recordkey.LastFailedAt, value: &r.LastFailedAt},
		{key: recordkey.FirstFailedAt, value: &r.FirstFailedAt},
		{key: recordkey.FirstArrivedAt, value: &r.FirstArrivedAt},
		{key: recordkey.Handler, value: &r.Handler},
		{key: recordkey.ErrorType, value: &r.ErrorType},
		{key: recordkey.Key, value: &r.Key},
		{key: recordkey.Traceparent, value: &r.Traceparent},
		{key: poison.PoisonedTopicKey, value: &r.Topic, poison: true, repeats: true},
		{key: poison.PoisonedHandlerKey, value: &r.Handler, poison: true, repeats: true},
		{key: poison.PoisonedSubscriberKey, value: &r.Subscriber, poison: true, dead: true},
		{key: recordkey.Reason, value: &r.Reason},
		{key: poison.ReasonForPoisonedKey, value: &r.Reason, poison: true, repeats: true},
		{key: delay.DelayedUntilKey, repeats: true}, // see writeDelay
		{key: delay.DelayedForKey, repeats: true},
	}
}

// ReadRecord reads the failure record of a message. It returns false where there is none or it is garbled: a count that
// is no number, is negative or is beyond any schedule, a time that cannot be read or lies more than backoff.MaxDelay
// ahead, a remaining delay that is not between 0 and backoff.MaxDelay. Then the record has only its texts. What a
// marshaler had to leave out to make the message fit is zero. Inside a handler it reports how often the message has
// failed before.
func ReadRecord(metadata message.Metadata) (Record, bool) {
	var record Record
	known := record.read(metadata, time.Now())
	if !known {
		record = Record{}
		record.readTexts(metadata)
	}
	return record, known
}

// read reads the record into r. Where it returns false, r is not to be used.
func (r *Record) read(metadata message.Metadata, now time.Time) bool {
	if _, found := metadata[recordkey.Failures]; !found {
		return false
	}
	latest, dead := now.Add(backoff.MaxDelay), metadata[recordkey.DeadReason] != ""
	rows := r.rows()
	for i := range rows {
		row := &rows[i]
		if row.repeats || row.dead && !dead {
			continue
		}
		if text, found := metadata[recordKeys[i]]; found && !row.read(text, latest) {
			return false
		}
	}
	return true
}

func (r *Record) readTexts(metadata message.Metadata) {
	rows := r.rows()
	for i := range rows {
		if row := &rows[i]; row.isText() && !row.repeats {
			row.read(metadata[recordKeys[i]], time.Time{})
		}
	}
}

// Write replaces the failure record in metadata. The map must not be shared with another message. A record with a dead
// reason is also written in the keys of Watermill's poison queue; one that waits, in those of Watermill's
// components/delay.
func (r Record) Write(metadata message.Metadata) {
	delete(metadata, recordkey.UnmarshalError) // the properties stay: the marshaler of the copy needs it
	r.Traceparent = traceContext(r.Traceparent)
	rows := r.rows()
	for i := range rows {
		row, key := &rows[i], recordKeys[i] // with the key of the row, the record would escape to the heap
		switch value := row.text(); {
		case row.value == nil, row.poison && (value == "" || r.DeadReason == ""):
		case value != "":
			metadata[key] = value
		default:
			delete(metadata, key)
		}
	}
	if r.Failures <= 0 {
		metadata[recordkey.Failures] = strconv.Itoa(r.Failures) // without a count it is no record
	}
	r.writeDelay(metadata)
}

// writeDelay writes the due time in the keys of components/delay, rounded up: its own helper cuts to whole seconds,
// which would be early.
func (r *Record) writeDelay(metadata message.Metadata) {
	if r.DueAt.IsZero() {
		delete(metadata, delay.DelayedUntilKey)
		delete(metadata, delay.DelayedForKey)
		return
	}
	until := r.DueAt.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
	metadata[delay.DelayedUntilKey] = formatTime(until)
	wait := (time.Until(r.DueAt) + time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
	metadata[delay.DelayedForKey] = max(wait, 0).String()
}

// String returns the fields that are set, as name=value. The names are those of the JSON.
func (r Record) String() string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "failures=%d", r.Failures)
	rows := r.rows()
	for i := range rows {
		row := &rows[i]
		if value := row.text(); value != "" && !row.repeats && row.key != recordkey.Failures {
			_, _ = fmt.Fprintf(&text, " %s=%q", row.name(), value)
		}
	}
	return text.String()
}
