package main

import (
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		assert.Equal(t, 2, l.back())
		require.EqualError(t, l.check(), "lost=1 of 3 messages")
		assert.Equal(t, 1, l.twice)

		l.call(idOf(2))
		require.NoError(t, l.wait(0))
		assert.Equal(t, 5*time.Millisecond, percentile(l.late, 0.99))

		l.call("another app's")
		l.waits(0)
		time.Sleep(900 * time.Millisecond)
		l.call(idOf(0))
		require.EqualError(t, l.check(), "early=1 of 3 messages\nforeign=1 of 3 messages")
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

func TestReportHasAColumnForEachBroker(t *testing.T) {
	t.Parallel()
	r := &report{}
	for _, version := range []string{"4.0.5", "4.3.6"} {
		b := &bench{server: &server{version: version}, report: r}
		b.claim("late_tiers_per_queue_p99", 1234.5)
		b.claim("worker_own_subscriber", 47.25)
		b.row("How long", []string{"took"}, 2*time.Second)
	}
	require.Equal(t, "claim late_tiers_per_queue_p99@4.0 measured=1234ms target=50ms missed", r.figures[0].String())
	require.Equal(t, "claim worker_own_subscriber@4.3 measured=47.2 target=20 ok", r.figures[3].String())
	for _, want := range []string{
		"| claim | what it is | target | 4.0 | 4.3 |\n",
		"| `late_tiers_per_queue_p99` | the same with tiers of each work queue | at most 50 ms | 1234 ms: missed | " +
			"1234 ms: missed |\n",
		"| at least 20 | 47.2 | 47.2 |\n",
		"\n### How long\n\n| RabbitMQ | took |\n|---|---|\n| 4.0.5 | 2s |\n| 4.3.6 | 2s |\n",
	} {
		assert.Contains(t, r.markdown(), want)
	}
}

// TestThePageHasTheClaims: each claim of the program is on the page, with its text and target, and no other.
func TestThePageHasTheClaims(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/benchmarks.md")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (.*?) \\| (.*?) \\|").FindAllStringSubmatch(string(page),
		-1)
	require.Len(t, rows, len(claims))
	for i, c := range claims {
		assert.Equal(t, []string{c.name, c.what, bound(c)}, rows[i][1:])
	}
}
