package middleware

import (
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

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
	extra := policy.ExtraTiers
	if tiersWait && policy.TierGroup != "" && len(extra) == 0 { // all work queues of the group share them
		extra = backoff.Ladder(time.Second, 12*24*time.Hour)
	}
	tiers := unionOf(policy.Schedule, policy.Rules, extra).Tiers()
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
		lanes = append(lanes, Lanes(time.Duration(tier), policy.Jitter)...)
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
