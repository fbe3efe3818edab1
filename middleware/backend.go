package middleware

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// Backend publishes the copies of failed messages. NewTieredRetry of a builder of package config makes the middleware
// with one for RabbitMQ, and Relay.Backend of package relay returns one for other Pub/Subs.
type Backend interface {
	// Use makes the tiers of a policy ready for copies, and returns what differs between backends. New calls it once.
	// The error is that of New.
	Use(policy retry.Policy) (Traits, error)

	// Publish publishes a copy, and returns where to. It must return nil only when the copy is safe, and should obey
	// the deadline of the message's context. It returns the destination with an error too, where it is known. The error
	// wraps a *retry.PublishError; any other error counts as temporary. A panic counts as a temporary error.
	Publish(c Copy) (retry.Destination, error)
}

// Copy is what a Backend publishes in place of a failed message.
type Copy struct {
	Message *message.Message // the backend may change it
	Topic   string           // the topic the handler subscribes to
	Queue   string           // the queue that the message was in; empty where its subscriber does not name it
	Handler string           // the handler's name in the router
	Tier    backoff.Tier     // the tier that the message is to wait on; 0: it is a dead letter

	// Suspect is the same one for all tries of a message. A backend may set it when the broker closes a channel because
	// of the message, to publish it alone at the next try.
	Suspect *atomic.Bool
}

// Traits are what differs between backends.
type Traits struct {
	// TiersWait is true where a copy comes back when the delay of its tier is over, as on RabbitMQ, and false where the
	// backend waits until the due time of each message, as package relay does. Tiers can have one tier more then.
	TiersWait bool

	// DelayArrivals makes a message wait before its first try if it has the metadata of Watermill's components/delay.
	// The delay begins when the message arrives. It must be false for a Pub/Sub that delays such messages by itself:
	// they would wait twice.
	DelayArrivals bool

	// Source is where the messages must come from. The messages of another source are refused: each is held up to
	// MaxHold, and the error in the log says what to do. The handler is not called and nothing is published. Nil: the
	// source is not checked.
	Source *Source

	// Observers get the outcomes. Nil: there are none.
	Observers *Observers
}

// Tiers returns all tiers that messages may wait on: those of Schedule, of Rules and ExtraTiers, ascending. With a
// Jitter, the lanes of Schedule and of Rules are among them. Where tiersWait, one of 1s is among them, for requested
// delays, if there are tiers below 1s and the next longer one is more than 20 times as long, or there is none.
func Tiers(policy retry.Policy, tiersWait bool) []backoff.Tier {
	all := slices.Concat(plainTiers(policy, tiersWait), backoff.Schedule(lanesOf(policy)).Tiers())
	slices.Sort(all)
	return slices.Compact(all)
}

// plainTiers are Tiers without Jitter.
func plainTiers(policy retry.Policy, tiersWait bool) []backoff.Tier {
	tiers := backoff.Schedule(unionOf(policy.Schedule, policy.Rules, policy.ExtraTiers)).Tiers()
	at, found := slices.BinarySearch(tiers, roundTier)
	if !tiersWait || found || at == 0 || at < len(tiers) && !tooManyRounds(time.Duration(tiers[at]), tiers[at-1]) {
		return tiers
	}
	return slices.Insert(tiers, at, roundTier)
}

const (
	// roundTier is added to tiers that are shorter, so that a message with a long delay is published about once a
	// second.
	roundTier = backoff.Tier(time.Second)
	// maxShortRounds is how many rounds a wait takes at most on a tier that is shorter than roundTier.
	maxShortRounds = 20
)

// tooManyRounds reports whether a wait is too long for a tier that is shorter than roundTier.
func tooManyRounds(wait time.Duration, tier backoff.Tier) bool {
	return tier < roundTier && wait > maxShortRounds*time.Duration(tier)
}

// lanesOf returns the lanes of all delays that are spread.
func lanesOf(policy retry.Policy) (lanes []time.Duration) {
	if policy.Jitter == 0 {
		return nil
	}
	for _, tier := range backoff.Schedule(unionOf(policy.Schedule, policy.Rules, nil)).Tiers() {
		lanes = append(lanes, backoff.Lanes(time.Duration(tier), policy.Jitter)...)
	}
	return lanes
}

// policyOf returns what decisions depend on.
func policyOf(own retry.Policy, tiersWait bool) policy {
	p := policy{
		schedule: own.Schedule, tiers: plainTiers(own, tiersWait), jitter: own.Jitter, tiersWait: tiersWait,
		maxAge: own.MaxAge, maxDelay: own.MaxDelay,
	}
	p.lanes = without(Tiers(own, tiersWait), p.tiers)
	return p
}

// unionOf returns a schedule with all tiers.
func unionOf(schedule backoff.Schedule, rules []retry.Rule, extra []time.Duration) backoff.Schedule {
	if len(rules) == 0 && len(extra) == 0 {
		return schedule
	}
	all := slices.Concat(schedule, extra)
	for _, rule := range rules {
		all = append(all, rule.Then.Schedule...)
	}
	return all
}
