package relay

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// tierTopic is a tier with its topic.
type tierTopic struct {
	topic string
	tier  backoff.Tier
	// longest is how long a message stays on the tier that is due much later: as long as the tier, but on the longest
	// one at least about a second. There a message may stay for years, and must not circle in a hot loop.
	longest time.Duration
}

// tierSet contains the tiers of a relay. It does not change: addTiers makes a new one.
type tierSet struct {
	declared []backoff.Tier // the tiers of all policies: new messages can go there
	all      []tierTopic    // the topics, with those of RetiredSchedule; empty with DelayedReturns
	byTier   map[backoff.Tier]tierTopic
}

// newTierSet returns the declared tiers, in their order, and those of RetiredSchedule.
func newTierSet(c Config, declared []backoff.Tier) *tierSet {
	set := &tierSet{declared: declared, byTier: map[backoff.Tier]tierTopic{}}
	if c.DelayedReturns {
		return set
	}
	for _, tier := range merge(declared, c.RetiredSchedule.Tiers()) {
		t := tierTopic{topic: c.topics().Tier(tier), tier: tier, longest: time.Duration(tier)}
		if tier >= declared[len(declared)-1] {
			t.longest = max(t.longest, time.Second-t.slack())
		}
		set.byTier[tier] = t
		set.all = append(set.all, t)
	}
	return set
}

// postponed returns the tier on which a message waits that cannot be forwarded: the longest one of at most postponeFor,
// else the shortest.
func (s *tierSet) postponed() tierTopic {
	chosen := s.declared[0]
	for _, tier := range s.declared {
		if time.Duration(tier) <= postponeFor {
			chosen = tier
		}
	}
	return s.byTier[chosen]
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
		if err := r.subscribe(r.ending, &started, tier); err != nil {
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

// slack is how much longer than its tier a message waits, if it is then due. Clocks differ a little, and that
// difference must not cost another publish.
func (t tierTopic) slack() time.Duration {
	return min(time.Duration(t.tier)/20, time.Second) + 2*time.Millisecond
}

// setLeaveAt writes when a message leaves its tier that is due later. An end after its due time is that of a message
// that is postponed.
func setLeaveAt(metadata message.Metadata, end time.Time) {
	metadata[recordkey.LeaveAt] = ceilMillisecond(end).UTC().Format(timeLayout)
}

// leaveAt returns when the message leaves its tier. It returns false for a time that cannot be read.
func leaveAt(metadata message.Metadata) (time.Time, bool) {
	text, found := metadata[recordkey.LeaveAt]
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

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
