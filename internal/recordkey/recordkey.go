// Package recordkey has the metadata keys of the failure record. All values are strings. Times are RFC 3339 in UTC with
// milliseconds.
package recordkey

// The failure record travels with the message.
const (
	Failures       = "retry_failures"         // how often the message has failed, from 1
	FirstArrivedAt = "retry_first_arrived_at" // when it arrived first, if it had to wait then for a requested delay
	FirstFailedAt  = "retry_first_failed_at"  // when it failed first
	LastFailedAt   = "retry_last_failed_at"   // when it failed last
	DueAt          = "retry_due_at"           // when its handler is to be called again
	Reason         = "retry_reason"           // the text of the last error: valid UTF-8, at most 1 KiB
	ErrorType      = "retry_error_type"       // the Go type of the last error's root
	Topic          = "retry_topic"            // the topic it failed on; the record counts only there
	Handler        = "retry_handler"          // the handler that failed
	DeadReason     = "retry_dead_reason"      // why it was given up; in dead letters only
	Snoozes        = "retry_snoozes"          // how often it was snoozed
	// what remains of a requested delay after the present tier, for example 1.5s
	Remaining = "retry_remaining"
	LeftOff   = "retry_left_off" // what a dead letter in its last form lacks, and why; at most 1 KiB
	// the trace of the last failed attempt that an Observer has traced: W3C Trace Context
	Traceparent = "retry_traceparent"
	Key         = "retry_key" // what Breaker.Key returns
)

// The keys of Watermill's components/delay.
const (
	delayedUntil = "_watermill_delayed_until"
	delayedFor   = "_watermill_delayed_for"
)

// Letters stand for the keys where the record of a message that waits is one text, as on RabbitMQ, in their order in
// the text. Code that has to shorten such a text drops keys from the end. A message that waits lacks all other keys.
var Letters = [...]struct {
	Letter byte
	Key    string
}{
	{'n', Failures}, {'t', Topic}, {'m', Remaining}, {'d', DueAt}, {'l', LastFailedAt}, {'f', FirstFailedAt},
	{'a', FirstArrivedAt}, {'h', Handler}, {'e', ErrorType}, {'r', Reason}, {'u', delayedUntil},
	{'w', delayedFor}, {'s', Snoozes}, {'p', Traceparent},
	{'k', Key},
}

// What a relay writes on a message for the time on a tier. It is removed when the message leaves its tier.
const (
	LeaveAt  = "retry_leave_at"  // when it leaves this tier, where it is due later
	ReturnTo = "retry_return_to" // the key of its return topic, where that is not the handler's name
)

// Redriven is the key of the history of a message that was redriven. It is no part of the failure record: the message
// has it while it is handled again, and its next dead letter has it too. Handlers do not pass it on.
const Redriven = "retry_redriven"

// Keys that the marshaler of a Pub/Sub may set on a message that it received. Only the process has them, not the
// broker: the marshaler removes them from what it publishes and from what it receives, and the middleware from produced
// messages. Code that publishes a received message again, such as a redrive, keeps Properties: the marshaler makes
// properties and headers of it.
const (
	// Properties holds the parts of the message that are not string metadata, in an encoding of the marshaler.
	Properties = "retry_properties"
	// UnmarshalError holds why the app's marshaler could not read the message, which is then dead-lettered at once. It
	// counts only beside Properties.
	UnmarshalError = "retry_unmarshal_error"
)
