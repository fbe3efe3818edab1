package backoff

import "time"

// rungs are the tiers of a ladder: whole numbers of each unit. With the longest tier that is not above the rest, again and again, every
// number of a unit up to the next one needs at most three of them. No smaller sets do that. 30 days need four, and no other unit then.
var rungs = []struct {
	unit    time.Duration
	numbers []time.Duration
}{
	{time.Second, []time.Duration{1, 2, 3, 6, 10, 14, 30, 45}},
	{time.Minute, []time.Duration{1, 2, 3, 6, 10, 14, 30, 45}},
	{time.Hour, []time.Duration{1, 2, 3, 6, 10}},
	{24 * time.Hour, []time.Duration{1, 2, 5, 8, 19}},
}

// Ladder returns tiers that bring any delay of up to 30 days to its end in at most 12 rounds. Its tiers are those from shortest to
// longest of: 1, 2, 3, 6, 10, 14, 30 and 45 seconds, as many minutes, 1, 2, 3, 6 and 10 hours, 1, 2, 5, 8 and 19 days; and shortest
// itself. A message waits on the longest tier that is not above what remains of its delay, and a rest below the shortest tier waits on
// that one.
//
// It is for extra tiers, beside those of a schedule. On RabbitMQ each tier is one queue for each work queue: Ladder(time.Second,
// 30*24*time.Hour) has 26 of them, and Ladder(time.Second, time.Hour) has 17. That pays where handlers share tiers, or where long
// requested delays are frequent: an hour over tiers of 1s and 5s takes 720 rounds. For a few long delays one or two extra tiers near
// them, such as 1m and 1h, are enough.
//
// The bound of 12 holds for a shortest tier of 1 second. A shorter one can take up to as many rounds more as it fits into a second; with a longer one
// there are at most 13. A longest tier below the delay adds a round for each time that it fits into the delay.
//
// Invalid arguments stay in the result, as with [Constant]: [Schedule.Validate] reports a shortest tier that is not valid. A longest
// tier below the shortest one gives the shortest one alone.
func Ladder(shortest, longest time.Duration) []time.Duration {
	tiers := []time.Duration{shortest}
	for _, rung := range rungs {
		for _, n := range rung.numbers {
			if tier := n * rung.unit; tier > shortest && tier <= longest {
				tiers = append(tiers, tier)
			}
		}
	}
	return tiers
}
