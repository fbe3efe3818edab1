package middleware

import (
	"errors"
	"time"

	"github.com/sony/gobreaker"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

// keyRule is the rule of events of messages that wait because of their key.
const keyRule = "key"

// actionFor returns the action of the first rule that matches, and the rule's name. Another delivery of the message
// that is being handled is a rule before all others, and a circuit breaker of Watermill inside, which is open, one
// after them. in is nil for a message that is simulated.
func (t *TieredRetry) actionFor(in *delivery, record *retry.Record, err error) (retry.Action, string) {
	if ofFirstDelivery(err) {
		return retry.Snooze(time.Duration(t.policy.tiers[0])), "inbox"
	}
	for i := range t.config.Rules {
		if rule := &t.config.Rules[i]; t.matches(in, rule, *record, err) {
			return rule.Then, rule.Name
		}
	}
	if ofOpenBreaker(err) {
		shortest := time.Duration(t.policy.tiers[0])
		return retry.Action{Outcome: retry.Snoozed, Delay: shortest, Pause: shortest}, "circuit breaker"
	}
	return retry.Action{}, ""
}

// ofOpenBreaker reports whether a circuit breaker of Watermill has not called the handler. Some errors panic in their
// Unwrap method.
func ofOpenBreaker(err error) (open bool) {
	_ = panics.Call(func() {
		open = errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
	})
	return open
}

// ofFirstDelivery reports whether an Inbox has waited in vain for the end of another delivery of the message. Some
// errors panic in their Unwrap method.
func ofFirstDelivery(err error) (first bool) {
	_ = panics.Call(func() { first = errors.Is(err, msgctx.ErrFirstRuns) })
	return first
}

func (t *TieredRetry) matches(in *delivery, rule *retry.Rule, record retry.Record, err error) (matched bool) {
	t.guard(in, nil, "Rule.If panicked, the rule does not match", func() { matched = rule.If(record, err) })
	return matched
}
