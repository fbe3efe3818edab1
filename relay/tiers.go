package relay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// tierTopic is a tier with its topic and the length of its hops.
type tierTopic struct {
	topic string
	tier  backoff.Tier
	hop   time.Duration
	// longest is how long a message stays on the tier that is due much later. It is hop, but not less than about a
	// second on the longest tier: there a message may stay for years, and must not circle in a hot loop.
	longest time.Duration
}

// tierSet contains the tiers of a relay. It does not change: addTiers makes a new one.
type tierSet struct {
	declared []backoff.Tier // of all policies: new messages can go there
	all      []tierTopic    // those of RetiredSchedule too; empty with DelayedReturns
	byTopic  map[string]tierTopic
	byTier   map[backoff.Tier]tierTopic
}

// tiersOf returns a schedule with all tiers of a policy.
func tiersOf(policy retry.Policy) (schedule backoff.Schedule) {
	for _, tier := range middleware.Tiers(policy, false) {
		schedule = append(schedule, time.Duration(tier))
	}
	return schedule
}

// newTierSet returns the tiers of a schedule and of RetiredSchedule. Each must have a topic of its own.
func newTierSet(c Config, schedule backoff.Schedule) (*tierSet, error) {
	set := &tierSet{declared: schedule.Tiers(), byTopic: map[string]tierTopic{}, byTier: map[backoff.Tier]tierTopic{}}
	if c.DelayedReturns {
		return set, nil
	}
	var faults []error
	unknown, err := c.Topic(TopicParams{Kind: DeadLetterTopic, Handler: UnknownHandler})
	if err != nil {
		faults = append(faults, err)
	}
	for _, tier := range slices.Concat(schedule, c.RetiredSchedule).Tiers() {
		topic, err := c.Topic(TopicParams{Kind: TierTopic, Tier: tier})
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if other, found := set.byTopic[topic]; found {
			faults = append(faults, fmt.Errorf("GenerateTopic returned %q for both tier %v and tier %v; names must "+
				"be unique", topic, other.tier, tier))
		}
		if topic == unknown {
			faults = append(faults, fmt.Errorf("GenerateTopic returned %q for both tier %v and the dead-letter topic "+
				"of unknown handlers; names must be unique", topic, tier))
		}
		t := tierTopic{topic: topic, tier: tier, hop: hopOf(time.Duration(tier), c.MaxHop)}
		t.longest = t.hop
		if tier >= set.declared[len(set.declared)-1] {
			t.longest = max(t.hop, min(time.Second, c.MaxHop)-t.slack())
		}
		set.byTopic[topic], set.byTier[tier] = t, t
		set.all = append(set.all, t)
	}
	return set, errors.Join(faults...)
}

// addTiers adds tiers to those that messages can go to.
func (r *Relay) addTiers(tiers []backoff.Tier) error {
	defer r.locked()()
	if r.closed {
		return errClosed
	}
	old := r.tiers.Load()
	var union backoff.Schedule
	for _, tier := range slices.Concat(tiers, old.declared) {
		union = append(union, time.Duration(tier))
	}
	set, err := newTierSet(r.config, union)
	if err != nil {
		return err
	}
	var started []*pump
	for _, tier := range set.all {
		if _, known := old.byTopic[tier.topic]; known {
			continue
		}
		if handler, taken := r.handlers.uses(tier.topic); taken {
			err = fmt.Errorf("GenerateTopic returned %q for both handler %q and tier %v; names must be unique",
				tier.topic, handler, tier.tier)
		} else if r.users > 0 {
			err = r.subscribe(&started, tier)
		}
		if err != nil {
			abandon(started)
			return err
		}
	}
	r.tiers.Store(set)
	for _, pump := range started {
		r.pumps.start(pump)
	}
	return nil
}
