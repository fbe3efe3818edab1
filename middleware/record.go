package middleware

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

// The failure record travels as metadata, all of it strings. Times are RFC 3339 in UTC with milliseconds.
const (
	FailuresKey      = "retry_failures"        // how often the message has failed, from 1
	FirstFailedAtKey = "retry_first_failed_at" // when it failed first
	LastFailedAtKey  = "retry_last_failed_at"  // when it failed last
	DueAtKey         = "retry_due_at"          // when its handler is to be called again
	ReasonKey        = "retry_reason"          // the text of the last error: valid UTF-8, at most 1 KiB
	ErrorTypeKey     = "retry_error_type"      // the Go type of the last error's root
	TopicKey         = "retry_topic"           // the topic it failed on; the record counts only there
	HandlerKey       = "retry_handler"         // the handler that failed
	DeadReasonKey    = "retry_dead_reason"     // why it was given up; in dead letters only
)

// Keys that a Pub/Sub's own marshaler may set on a message it received. They never leave the process: the middleware
// removes them from produced messages, the marshaler from what it publishes and from what it receives.
const (
	// PropertiesKey holds what the message carried beside metadata that are strings, in an encoding of the marshaler's.
	PropertiesKey = "retry_properties"
	// UnmarshalErrorKey holds why the app's marshaler could not read the message, which is then dead-lettered at once. It
	// counts only beside PropertiesKey.
	UnmarshalErrorKey = "retry_unmarshal_error"
)

// Watermill's own keys of a poison queue: dead letters carry them too, so that what reads the one reads the other.
const (
	poisonReasonKey     = "reason_poisoned"
	poisonTopicKey      = "topic_poisoned"
	poisonHandlerKey    = "handler_poisoned"
	poisonSubscriberKey = "subscriber_poisoned"
)

const (
	timeLayout   = "2006-01-02T15:04:05.000Z07:00"
	maxReason    = 1024
	maxRedacted  = 64 * 1024 // what RedactReason gets to see
	maxErrorType = 255

	// maxFailures is more than any schedule can count, and far from where another failure would make the count negative.
	maxFailures = 1 << 30
)

var recordKeys = []string{
	FailuresKey, FirstFailedAtKey, LastFailedAtKey, DueAtKey, ReasonKey, ErrorTypeKey, TopicKey, HandlerKey, DeadReasonKey,
	PropertiesKey, UnmarshalErrorKey,
}

// delayKeys are Watermill's own: Pub/Subs that can delay messages, such as watermill-sql's delayed PostgreSQL, obey them.
var delayKeys = []string{delay.DelayedUntilKey, delay.DelayedForKey}

// Record is the story of a message's failures, as it travels with the message and stays with the dead letter.
type Record struct {
	Failures      int
	FirstFailedAt time.Time
	LastFailedAt  time.Time
	DueAt         time.Time // zero in dead letters
	Reason        string
	ErrorType     string
	Topic         string
	Handler       string
	DeadReason    string // empty while the message is being retried
}

// ReadRecord reads the failure record of a message. It returns false where there is none or it is garbled: a count that is
// no positive number or beyond any schedule, a time that cannot be read or lies more than backoff.MaxDelay ahead. What a marshaler had to leave
// out, so that the message fitted its broker, is zero. Inside a handler it tells how often the message has failed before.
func ReadRecord(metadata message.Metadata) (Record, bool) {
	return readRecord(metadata, time.Now())
}

func readRecord(metadata message.Metadata, now time.Time) (Record, bool) {
	count, found := metadata[FailuresKey]
	if !found {
		return Record{}, false
	}
	failures, err := strconv.Atoi(count)
	if err != nil || failures < 1 || failures > maxFailures {
		return Record{}, false
	}
	record := Record{
		Failures:   failures,
		Reason:     metadata[ReasonKey],
		ErrorType:  metadata[ErrorTypeKey],
		Topic:      metadata[TopicKey],
		Handler:    metadata[HandlerKey],
		DeadReason: metadata[DeadReasonKey],
	}
	latest := now.Add(backoff.MaxDelay)
	for _, at := range []struct {
		key   string
		value *time.Time
	}{{FirstFailedAtKey, &record.FirstFailedAt}, {LastFailedAtKey, &record.LastFailedAt}, {DueAtKey, &record.DueAt}} {
		text, found := metadata[at.key]
		if !found {
			continue
		}
		parsed, err := time.Parse(timeLayout, text)
		if err != nil || parsed.After(latest) {
			return Record{}, false
		}
		*at.value = parsed.UTC()
	}
	return record, true
}

// write puts the record into metadata that are the copy's own.
func (r Record) write(metadata message.Metadata) {
	for _, key := range recordKeys {
		if key != PropertiesKey { // the marshaler of the copy needs it
			delete(metadata, key)
		}
	}
	set := func(key, value string) {
		if value != "" {
			metadata[key] = value
		}
	}
	set(FailuresKey, strconv.Itoa(r.Failures))
	set(FirstFailedAtKey, formatTime(r.FirstFailedAt))
	set(LastFailedAtKey, formatTime(r.LastFailedAt))
	set(DueAtKey, formatTime(r.DueAt))
	set(ReasonKey, r.Reason)
	set(ErrorTypeKey, r.ErrorType)
	set(TopicKey, r.Topic)
	set(HandlerKey, r.Handler)
	set(DeadReasonKey, r.DeadReason)
	r.writeDelay(metadata)
}

// writeDelay says the due time in Watermill's terms too. Its own helper cuts it to whole seconds, which would be early; here it
// is rounded up. A dead letter waits for nothing.
func (r Record) writeDelay(metadata message.Metadata) {
	for _, key := range delayKeys {
		delete(metadata, key)
	}
	if r.DueAt.IsZero() {
		return
	}
	until := r.DueAt.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
	metadata[delay.DelayedUntilKey] = formatTime(until)
	metadata[delay.DelayedForKey] = max(time.Until(r.DueAt).Round(time.Millisecond), 0).String()
}

func (r Record) writePoison(metadata message.Metadata, subscriber string) {
	metadata[poisonReasonKey] = r.Reason
	metadata[poisonTopicKey] = r.Topic
	metadata[poisonHandlerKey] = r.Handler
	metadata[poisonSubscriberKey] = subscriber
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// withoutRecord takes the record of the inbound message from the messages that its handler produced, so that it never
// counts on their topic. Maps are replaced, not written into: they may be the inbound message's own.
// The delay goes only where it is still the inbound message's: a handler may wish another for what it produces.
func withoutRecord(produced []*message.Message, inbound message.Metadata) {
	for _, msg := range produced {
		if msg == nil || !carriesRecord(msg.Metadata) {
			continue
		}
		clean := maps.Clone(msg.Metadata)
		for _, key := range recordKeys {
			delete(clean, key)
		}
		for _, key := range delayKeys {
			if clean[key] == inbound[key] {
				delete(clean, key)
			}
		}
		msg.Metadata = clean
	}
}

// carriesRecord runs for every message: it asks only for the keys without which the others mean nothing.
func carriesRecord(metadata message.Metadata) bool {
	if len(metadata) == 0 {
		return false
	}
	_, failures := metadata[FailuresKey]
	_, properties := metadata[PropertiesKey]
	return failures || properties
}

// errorText is the error's text, bounded. Some errors panic when asked.
func errorText(err error, bytes int) (text string) {
	defer func() {
		if recovered := recover(); recovered != nil {
			text = fmt.Sprintf("%T: its Error method panicked", err)
		}
	}()
	return cut(err.Error(), bytes)
}

// errorType is the type of the error's root: wrappers say little.
func errorType(err error) (name string) {
	name = fmt.Sprintf("%T", err)
	defer func() {
		_ = recover() // an Unwrap that panics
		name = cut(name, maxErrorType)
	}()
	for root := err; root != nil; root = errors.Unwrap(root) {
		name = fmt.Sprintf("%T", root)
	}
	return name
}

// cut bounds a text to so many bytes of valid UTF-8.
func cut(text string, bytes int) string {
	if len(text) > bytes {
		text = text[:bytes]
		for i := 0; i < utf8.UTFMax-1 && len(text) > 0; i++ {
			if r, size := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || size != 1 {
				break
			}
			text = text[:len(text)-1]
		}
	}
	valid := strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?") // PostgreSQL's JSON holds no NUL
	return valid[:min(len(valid), bytes)]
}
