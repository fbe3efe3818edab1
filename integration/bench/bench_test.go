package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

func TestLedgerCountsByIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(3, always(time.Second))
		l.calls = func(int) int { return 2 }
		l.collect = true
		for i := range 3 {
			delay, again := l.call(idOf(i))
			assert.Equal(t, time.Second, delay)
			assert.True(t, again)
		}
		time.Sleep(time.Second + 5*time.Millisecond)
		for range 2 { // message 1 is doubled, so that messages 1 and 2 do not cancel each other out
			_, again := l.call(idOf(1))
			assert.False(t, again)
		}
		l.call(idOf(0))
		assert.Equal(t, 2, l.Back())
		require.EqualError(t, l.Check(), "lost=1 of 3 messages")
		assert.Equal(t, 1, l.Twice)

		l.call(idOf(2))
		require.NoError(t, l.wait(0))
		assert.Equal(t, 5*time.Millisecond, claims.Percentile(l.late, 0.99))

		l.call("another app's")
		l.fails(idOf(0))
		time.Sleep(900 * time.Millisecond)
		l.call(idOf(0))
		require.EqualError(t, l.Check(), "early=1 of 3 messages\nforeign=1 of 3 messages")
	})
}

func TestLedgerReportsALossAfterItsPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(2, always(0))
		l.call(idOf(0))
		require.EqualError(t, l.wait(time.Hour), "lost=1 of 2 messages")
	})
}

func TestTiersOfAMillionAreDueTogether(t *testing.T) {
	t.Parallel()
	const rate = 10_000.0
	plan := newMillionPlan(1_000_000, rate, 15*time.Second)
	require.Len(t, plan.tiers, millionTiers)
	published := time.Duration(1_000_000 / rate * float64(time.Second))
	first, last := time.Duration(1<<62), time.Duration(0)
	for i := range plan.messages {
		due := time.Duration(float64(i)/rate*float64(time.Second)) + plan.tierOf(i)
		first, last = min(first, due), max(last, due)
	}
	assert.GreaterOrEqual(t, first, published+10*time.Second, "all wait at the same time")
	assert.LessOrEqual(t, last-first, published/millionTiers+3*time.Second)
}

// TestClaimsOfTheList: each row of the list is a claim that the program can read, and that it measures.
func TestClaimsOfTheList(t *testing.T) {
	t.Parallel()
	all := claims.Of(claims.List, "Claims")
	require.Len(t, all, strings.Count(claims.Section(claims.List, "Claims"), "\n| `"))
	require.NotEmpty(t, all)
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var code string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		code += string(text)
	}
	for _, c := range all {
		assert.Contains(t, code, "\""+c.Name+"\"")
	}
}
