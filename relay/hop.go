package relay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

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
