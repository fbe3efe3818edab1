package backoff

import "time"

// A ladder has each number of each unit. With the longest tier that is not above the rest, again and again, every
// number up to 111 needs at most four of them: no other seven numbers reach further. A unit is at most 111 of the unit
// before it.
var (
	rungs = []time.Duration{1, 2, 5, 8, 19, 30, 71}
	units = []time.Duration{time.Second, 100 * time.Second, 3 * time.Hour}
)

// Ladder returns tiers that bring any delay of whole seconds up to 12 days to its end in at most 12 rounds. Its tiers
// are those from shortest to longest of: 1, 2, 5, 8, 19, 30 and 71 times 1 second, 100 seconds and 3 hours; and
// shortest itself. A message waits on the longest tier that is not above what remains of its delay, and a rest below
// the shortest tier waits on that one.
//
// It is for extra tiers, beside those of a schedule. On RabbitMQ each tier is one queue for each work queue, or for
// each group of work queues, where a ladder is the default: Ladder(time.Second, 12*24*time.Hour) has 21 of them, and
// Ladder(time.Second, time.Hour) has 13. Without a group that pays where long requested delays are frequent: an hour
// over tiers of 1s and 5s takes 720 rounds. For a few long delays one or two extra tiers near them, such as 1m and 1h,
// are enough.
//
// The bound of 12 holds for a shortest tier of 1 second; a rest below a second takes one round more. A delay of 30 days
// takes at most 14 rounds. A shorter tier can take up to 20 rounds more; with a longer one there is at most one more. A
// longest tier below the delay adds a round for each time that it fits into the delay.
//
// Invalid arguments stay in the result, as with [Constant]: [Schedule.Validate] reports a shortest tier that is not
// valid. A longest tier below the shortest one gives the shortest one alone.
func Ladder(shortest, longest time.Duration) []time.Duration {
	tiers := []time.Duration{shortest}
	for _, unit := range units {
		for _, n := range rungs {
			if tier := n * unit; tier > shortest && tier <= longest {
				tiers = append(tiers, tier)
			}
		}
	}
	return tiers
}
