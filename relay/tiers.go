package relay

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
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
	byTier   map[backoff.Tier]tierTopic
}

// newTierSet returns the declared tiers, in their order, and those of RetiredSchedule.
func newTierSet(c Config, declared []backoff.Tier) *tierSet {
	set := &tierSet{declared: declared, byTier: map[backoff.Tier]tierTopic{}}
	if c.DelayedReturns {
		return set
	}
	for _, tier := range merge(declared, c.RetiredSchedule.Tiers()) {
		t := tierTopic{topic: c.topics().Tier(tier), tier: tier, hop: hopOf(time.Duration(tier), c.MaxHop)}
		t.longest = t.hop
		if tier >= declared[len(declared)-1] {
			t.longest = max(t.hop, min(time.Second, c.MaxHop)-t.slack())
		}
		set.byTier[tier] = t
		set.all = append(set.all, t)
	}
	return set
}

// merge returns the tiers of both, each once, the shortest first.
func merge(a, b []backoff.Tier) []backoff.Tier {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// addTiers adds tiers to those that messages can go to.
func (r *relay) addTiers(policy retry.Policy) error {
	defer r.locked()()
	if r.closed {
		return errClosed
	}
	old := r.tiers.Load()
	set := newTierSet(r.config, merge(old.declared, middleware.Tiers(policy, false)))
	var started []*pump
	for _, tier := range set.all {
		if _, known := old.byTier[tier.tier]; known || r.users == 0 {
			continue
		}
		if err := r.subscribe(&started, tier); err != nil {
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

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// hopOf divides a tier into equal hops no longer than maxHop, except for the rounding up to whole milliseconds.
func hopOf(tier, maxHop time.Duration) time.Duration {
	hops := (tier-1)/maxHop + 1
	return ceilMilliseconds((tier-1)/hops + 1)
}

// slack is how much longer than one hop a message waits, if it is then due. Clocks differ a little, and that difference
// must not cost another hop.
func (t tierTopic) slack() time.Duration { return t.hop/20 + 2*time.Millisecond }

func (t tierTopic) startHop(metadata message.Metadata, now time.Time) {
	metadata[recordkey.HopDueAt] = ceilMillisecond(now.Add(t.longest)).UTC().Format(timeLayout)
}

// hopEnd returns the end of the message's present hop. It returns false for a time that cannot be read.
func hopEnd(metadata message.Metadata) (time.Time, bool) {
	text, found := metadata[recordkey.HopDueAt]
	if !found {
		return time.Time{}, false
	}
	end, err := time.Parse(timeLayout, text)
	return end, err == nil
}

// dueAt returns the earliest time at which the message may come back. The times of a record are cut to whole
// milliseconds, so one millisecond is added.
func dueAt(record retry.Record) time.Time {
	if record.DueAt.IsZero() {
		return record.DueAt
	}
	return record.DueAt.Add(time.Millisecond)
}

func ceilMillisecond(t time.Time) time.Time {
	if cut := t.Truncate(time.Millisecond); cut.Before(t) {
		return cut.Add(time.Millisecond)
	}
	return t
}

func ceilMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
