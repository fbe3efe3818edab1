package middleware

import (
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Why a message was dead-lettered: the values of DeadReasonKey.
const (
	DeadReasonExhausted = "exhausted" // its retries are used up
	DeadReasonPermanent = "permanent" // its handler returned a backoff.Permanent error
	DeadReasonUnmarshal = "unmarshal" // the app's marshaler cannot read it, so no handler was called
	DeadReasonTooLarge  = "too_large" // its headers are too large for a tier
)

// errUnmarshal is the failure of a message that carries UnmarshalErrorKey.
type errUnmarshal string

func (e errUnmarshal) Error() string { return "cannot unmarshal the message: " + string(e) }

// decision is what becomes of a message that failed: its dead reason, or how long it waits and on which tier.
type decision struct {
	deadReason string
	delay      time.Duration
	tier       backoff.Tier
}

// decide is a pure function of the failure and of how many there have been, this one included.
func decide(schedule backoff.Schedule, tiers []backoff.Tier, failures int, failure error) decision {
	if _, unreadable := failure.(errUnmarshal); unreadable {
		return decision{deadReason: DeadReasonUnmarshal}
	}
	permanent, wish := wishOf(failure)
	if permanent {
		return decision{deadReason: DeadReasonPermanent}
	}
	delay, ok := schedule.Delay(failures)
	if !ok {
		return decision{deadReason: DeadReasonExhausted}
	}
	if wish > 0 {
		delay = min(wish, backoff.MaxDelay)
	}
	return decision{delay: delay, tier: tierFor(tiers, delay)}
}

// wishOf asks the error itself. The methods of an app's errors may panic: then it has no wish.
func wishOf(failure error) (permanent bool, after time.Duration) {
	defer func() {
		if recover() != nil {
			permanent, after = false, 0
		}
	}()
	after, _ = backoff.RetryAfterDelay(failure)
	return backoff.IsPermanent(failure), after
}

// tierFor is the shortest tier that covers the wait, or the longest: what is left is waited for in another round.
func tierFor(tiers []backoff.Tier, wait time.Duration) backoff.Tier {
	for _, tier := range tiers {
		if time.Duration(tier) >= wait {
			return tier
		}
	}
	return tiers[len(tiers)-1]
}
