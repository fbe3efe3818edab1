package relay

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

// DeadReasonForeign is the dead reason of a message on a tier that has no failure record with a handler.
const DeadReasonForeign retry.DeadReason = "foreign"

var errForeign = errors.New("the retry middleware did not publish this message")

// next returns the topic that a message goes to now and the metadata of its copy: a tier for the rest of its delay, its
// return topic, or a dead-letter topic if that is unknown. A message that is postponed goes to a tier, as it is.
func (p *pump) next(w *waiter, now time.Time) (topic string, metadata message.Metadata) {
	metadata = make(message.Metadata, len(w.msg.Metadata)+2)
	maps.Copy(metadata, w.msg.Metadata)
	delete(metadata, recordkey.LeaveAt)
	switch {
	case w.postponed:
		tier := p.relay.tiers.Load().postponed()
		setLeaveAt(metadata, now.Add(tier.longest))
		return tier.topic, metadata
	case !w.known:
		delete(metadata, recordkey.ReturnTo)
		p.foreignRecord(w.record, now).Write(metadata)
		return p.relay.topics.Dead(relaytopic.Unknown), metadata
	case now.Before(dueAt(w.record)):
		rest := dueAt(w.record).Sub(now)
		tier := p.tierFor(rest)
		if tier.topic == p.topic || rest > tier.longest+tier.slack() {
			setLeaveAt(metadata, earlier(now.Add(tier.longest), dueAt(w.record)))
		}
		return tier.topic, metadata
	default:
		delete(metadata, recordkey.ReturnTo)
		return p.relay.topics.Return(w.key), metadata
	}
}

// foreignRecord completes the record of a message that is dead-lettered because its handler is unknown, so that
// retry.ReadRecord reads it. The record is zero if the message had no readable one.
func (p *pump) foreignRecord(record retry.Record, now time.Time) retry.Record {
	record.Failures = max(record.Failures, 1)
	if record.LastFailedAt.IsZero() {
		record.LastFailedAt = now
	}
	if record.FirstFailedAt.IsZero() {
		record.FirstFailedAt = record.LastFailedAt
	}
	if record.Reason == "" {
		record.Reason = errForeign.Error()
	}
	if record.Topic == "" {
		record.Topic = p.topic
	}
	record.DueAt, record.DeadReason, record.Subscriber = time.Time{}, DeadReasonForeign, structName(p.subscriber)
	return record
}

// tierFor returns the tier on which a message waits for the rest of its delay. That is its own tier, unless less
// remains (a requested delay can do that): at the end of its own tier it would wait behind messages that are due later.
// A message of a host with another clock can be due after its tier: it waits on the longest tier that is not above the
// rest, where it is published less often.
func (p *pump) tierFor(rest time.Duration) tierTopic {
	tiers := p.relay.tiers.Load()
	if rest > time.Duration(p.tier)*3/4 {
		for _, tier := range slices.Backward(tiers.declared) {
			if tier > p.tier && time.Duration(tier) <= rest {
				return tiers.byTier[tier]
			}
		}
		return p.tierTopic
	}
	for _, tier := range tiers.declared {
		if tier < p.tier && time.Duration(tier) >= rest {
			return tiers.byTier[tier]
		}
	}
	return p.tierTopic
}
