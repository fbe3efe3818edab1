package backoff

import (
	"fmt"
	"strconv"
	"time"
)

// Tier is one distinct delay of a schedule, and so one waiting queue on the
// broker.
type Tier time.Duration

// Smaller units than a millisecond are in no valid tier; they are here so that
// an invalid one is printed as what it is, and never like another.
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
// The word holds no dot, and every tier has a word of its own.
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

// ParseTier reads a word that [Tier.String] wrote. It refuses every other
// spelling, such as 60s for 1m, because a queue has only one name.
func ParseTier(word string) (Tier, error) {
	delay, err := time.ParseDuration(word)
	if err != nil {
		return 0, fmt.Errorf("backoff: tier %.60q: want a whole number and one unit of h, m, s or ms, such as 90s", word)
	}
	if err := checkDelay(delay); err != nil {
		return 0, fmt.Errorf("backoff: tier %.60q: %w", word, err)
	}
	if canonical := Tier(delay).String(); word != canonical {
		return 0, fmt.Errorf("backoff: tier %.60q: want it spelled %q", word, canonical)
	}
	return Tier(delay), nil
}
