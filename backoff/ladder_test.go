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
	for _, tier := range slices.Backward(tiers) {
		n := (delay - waited) / tier
		rounds, waited = rounds+int(n), waited+n*tier
	}
	if waited < delay {
		rounds, waited = rounds+1, waited+tiers[0]
	}
	return rounds, waited
}

func TestLadderNeedsAtMostTwelveRounds(t *testing.T) {
	ladder := backoff.Ladder(time.Second, 30*day)
	require.Len(t, ladder, 21)
	worst := map[time.Duration]int{}
	for seconds := range 30*24*3600 + 1 { // all of them
		delay := time.Duration(seconds) * time.Second
		rounds, waited := roundsOf(delay, ladder)
		most, within := 12, 12*day
		if delay > within {
			most, within = 14, 30*day
		}
		if rounds > most || waited != delay {
			t.Fatalf("%v: %d rounds of together %v", delay, rounds, waited)
		}
		worst[within] = max(worst[within], rounds)
	}
	assert.Equal(t, map[time.Duration]int{12 * day: 12, 30 * day: 14}, worst)
}

func TestLadderFromALongerTier(t *testing.T) {
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
			if rounds > 16 || waited-delay >= shortest || waited < delay {
				t.Fatalf("from %v, %v: %d rounds of together %v", shortest, delay, rounds, waited)
			}
		}
	}
}

func TestLadderUpToALongestTier(t *testing.T) {
	for longest, want := range map[time.Duration]int{
		30 * day: 21, 12 * day: 21, time.Hour: 13, 49 * time.Minute: 12, time.Second: 1, 100 * 365 * day: 21,
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
