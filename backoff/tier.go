package backoff

import (
	"fmt"
	"strconv"
	"time"
)

// Tier is one distinct delay of a schedule. Messages wait for it on one queue, or
// on one topic where the Pub/Sub has no queues with a TTL.
type Tier time.Duration

// No valid tier has units below a millisecond. They are here so that an invalid
// tier is printed with its exact value, and never like a valid one.
var tierUnits = []struct {
	name string
	size Tier
}{
	{"h", Tier(time.Hour)},
	{"m", Tier(time.Minute)},
	{"s", Tier(time.Second)},
	{"ms", Tier(time.Millisecond)},
	{"us", Tier(time.Microsecond)},
	{"ns", Tier(time.Nanosecond)},
}

// String returns the tier as one word of a routing key: a whole number of the
// largest of the units h, m, s and ms that divides it, as in 1h, 90s or 1500ms.
// The word contains no dot, and no two tiers have the same word.
func (t Tier) String() string {
	if t == 0 {
		return "0s"
	}
	for _, unit := range tierUnits {
		if t%unit.size == 0 {
			return strconv.FormatInt(int64(t/unit.size), 10) + unit.name
		}
	}
	panic("unreachable: every duration is whole nanoseconds")
}

// ParseTier reads a word that [Tier.String] returned. It refuses every other
// spelling, such as 60s for 1m, because a queue has only one name.
func ParseTier(word string) (Tier, error) {
	delay, err := time.ParseDuration(word)
	if err != nil {
		return 0, fmt.Errorf("backoff: tier %.60q: want a whole number and one unit of h, m, s or ms, such as 90s",
			word)
	}
	if err := checkDelay(delay); err != nil {
		return 0, fmt.Errorf("backoff: tier %.60q: %w", word, err)
	}
	if canonical := Tier(delay).String(); word != canonical {
		return 0, fmt.Errorf("backoff: tier %.60q: want the spelling %q", word, canonical)
	}
	return Tier(delay), nil
}
