package retry

// Outcome is what becomes of one delivery of a message.
type Outcome string

// The outcomes of a delivery.
const (
	// Processed: the handler returned nil. Its produced messages are published without the failure record.
	Processed Outcome = "processed"
	// Recovered: Processed, and the message had failed or was snoozed before.
	Recovered Outcome = "recovered"
	// Duplicate: the handler was not called, because an Inbox of package inbox has found that the message was handled
	// before. The messages that were produced then are published again. A builder's messages are Processed instead.
	Duplicate Outcome = "duplicate"
	// Retried: the handler failed and retries are left. A copy waits on a tier.
	Retried Outcome = "retried"
	// Snoozed: the handler failed, and a rule or a circuit breaker has decided that the failure does not count. A copy
	// waits on a tier.
	Snoozed Outcome = "snoozed"
	// Parked: the handler was not called, because a part of a requested delay remains, or the key of the message is at
	// its limit. A copy waits on a tier, uncounted.
	Parked Outcome = "parked"
	// DeadLettered: the message is given up. A copy is a dead letter, with a DeadReason.
	DeadLettered Outcome = "dead-lettered"
	// Blocked: the message is given up, and keeps those of its key waiting until an operator decides, because the handler
	// has Order.Block.
	Blocked Outcome = "blocked"
	// Discarded: a rule has decided that the message is not needed any more. It is acknowledged without a copy.
	Discarded Outcome = "discarded"
	// Held: the copy cannot be published yet. The message stays unacknowledged, and another outcome follows. Only
	// observers get it.
	Held Outcome = "held"
	// GivenBack: the message is nacked and counts no failure, because the subscription ends, a rule says so, or the
	// copy cannot be published.
	GivenBack Outcome = "given back"
	// Settled: the handler failed after it had acked or nacked the message itself. No copy is published.
	Settled Outcome = "settled"
)

// Waits reports whether a copy of the message waits on a tier.
func (o Outcome) Waits() bool { return o == Retried || o == Snoozed || o == Parked }

// GivenUp reports whether the message is given up, with a DeadReason: it is a dead letter, or blocks its key.
func (o Outcome) GivenUp() bool { return o == DeadLettered || o == Blocked }

// DeadReason is why a message was dead-lettered: the value of retry_dead_reason. A dead letter that the broker or
// package relay made has a reason of theirs, and the action DeadLetter of a rule has one of the app's own.
type DeadReason string

// The dead reasons of the middleware.
const (
	DeadReasonExhausted DeadReason = "exhausted" // its retries are used up
	DeadReasonPermanent DeadReason = "permanent" // its handler returned a backoff.Permanent error
	DeadReasonExpired   DeadReason = "expired"   // it is older than MaxAge, or would be when its wait is over
	DeadReasonUnmarshal DeadReason = "unmarshal" // the app's marshaler cannot read it, so no handler was called
	DeadReasonTooLarge  DeadReason = "too_large" // it, or its headers, are too large for a tier
	// the publisher refuses its copy, for example because the app's marshaler cannot write it
	DeadReasonRefused DeadReason = "refused"
	DeadReasonNoTier  DeadReason = "no_tier" // every tier refuses its copy, for example because all are full
)

// DeadReasons returns the dead reasons of the middleware, in the order of the table in docs/outcomes.md.
func DeadReasons() []DeadReason {
	return []DeadReason{
		DeadReasonExhausted, DeadReasonPermanent, DeadReasonExpired, DeadReasonUnmarshal, DeadReasonTooLarge,
		DeadReasonRefused, DeadReasonNoTier,
	}
}
