package backoff_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

const day = 24 * time.Hour

// roundsOf returns on how many tiers a delay waits, and for how long together.
func roundsOf(delay time.Duration, tiers []time.Duration) (rounds int, waited time.Duration) {
	for rest := delay; rest > 0; rounds++ {
		tier := tiers[0]
		for _, t := range tiers {
			if t <= rest {
				tier = t
			}
		}
		rest -= tier
		waited += tier
	}
	return rounds, waited
}

func TestLadderNeedsAtMostThreeTiersOfAUnit(t *testing.T) {
	t.Parallel()
	ladder := backoff.Ladder(time.Second, 30*day)
	for _, row := range []struct {
		unit time.Duration
		most int
	}{{time.Second, 59}, {time.Minute, 59}, {time.Hour, 23}, {day, 29}} {
		for n := 1; n <= row.most; n++ {
			rounds, waited := roundsOf(time.Duration(n)*row.unit, ladder)
			assert.LessOrEqual(t, rounds, 3, "%d of %v", n, row.unit)
			assert.Equal(t, time.Duration(n)*row.unit, waited)
		}
	}
}

func TestLadderNeedsAtMostTwelveRounds(t *testing.T) {
	t.Parallel()
	ladder := backoff.Ladder(time.Second, 30*day)
	worst := 0
	for seconds := range 30*24*3600 + 1 { // all of them
		delay := time.Duration(seconds) * time.Second
		rounds, waited := roundsOf(delay, ladder)
		if rounds > 12 || waited != delay {
			t.Fatalf("%v: %d rounds of together %v", delay, rounds, waited)
		}
		worst = max(worst, rounds)
	}
	assert.Equal(t, 12, worst)
}

func TestLadderFromALongerTier(t *testing.T) {
	t.Parallel()
	for _, shortest := range []time.Duration{
		time.Second, 1500 * time.Millisecond, 2 * time.Second, 5 * time.Second, 10 * time.Second, 17 * time.Second, 30 * time.Second, 50 * time.Second,
		time.Minute, 5 * time.Minute, time.Hour, 5 * time.Hour,
	} {
		ladder := backoff.Ladder(shortest, 30*day)
		require.NoError(t, backoff.Schedule(ladder).Validate())
		assert.True(t, slices.IsSorted(ladder))
		assert.Equal(t, shortest, ladder[0])
		for delay := shortest; delay <= 30*day; delay += max(shortest/3, 7*time.Second) {
			rounds, waited := roundsOf(delay, ladder)
			if rounds > 13 || waited-delay >= shortest || waited < delay {
				t.Fatalf("from %v, %v: %d rounds of together %v", shortest, delay, rounds, waited)
			}
		}
	}
}

func TestLadderUpToALongestTier(t *testing.T) {
	t.Parallel()
	for longest, want := range map[time.Duration]int{
		30 * day: 26, time.Hour: 17, 59 * time.Minute: 16, time.Second: 1, 100 * 365 * day: 26,
		time.Millisecond: 1, 0: 1, -1: 1,
	} {
		ladder := backoff.Ladder(time.Second, longest)
		assert.Len(t, ladder, want, "%v", longest)
		assert.Equal(t, time.Second, ladder[0])
		for _, tier := range ladder[1:] {
			assert.LessOrEqual(t, tier, longest)
		}
	}
	require.ErrorContains(t, backoff.Schedule(backoff.Ladder(0, time.Hour)).Validate(), "retry 1: delay 0s is too short")
	require.ErrorContains(t, backoff.Schedule(backoff.Ladder(-time.Second, time.Hour)).Validate(), "retry 1: delay -1s is too short")
}

// The numbers of a unit are the fewest: no set with one number less needs at most three of them.
func TestLadderHasTheFewestTiers(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ most, tiers int }{{59, 8}, {23, 5}, {29, 5}} {
		assert.False(t, reaches([]int{1}, row.tiers-1, row.most), "%d numbers up to %d", row.tiers-1, row.most)
		assert.True(t, reaches([]int{1}, row.tiers, row.most), "%d numbers up to %d", row.tiers, row.most)
	}
}

// reaches reports whether the set can be extended to so many numbers that every number up to most needs at most three.
func reaches(set []int, size, most int) bool {
	first := most + 1 // that needs more than three
	for n := 1; n <= most; n++ {
		count, rest := 0, n
		for _, tier := range slices.Backward(set) {
			count += rest / tier
			rest %= tier
		}
		if count > 3 {
			first = n
			break
		}
	}
	if first > most {
		return true
	}
	if len(set) == size {
		return false
	}
	for next := set[len(set)-1] + 1; next <= first; next++ { // a larger one does not help the first one
		if reaches(append(slices.Clone(set), next), size, most) {
			return true
		}
	}
	return false
}
