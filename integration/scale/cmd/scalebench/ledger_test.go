package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLedgerReportsWhatWentWrong(t *testing.T) {
	t.Parallel()
	l := newLedger(3)
	l.waits(0, 0)
	l.waits(1, time.Hour)
	l.waits(2, 0)
	for _, id := range []string{idOf(0), idOf(0), idOf(1), "00000000-0000-4000-8000-000000000003", "a word"} {
		l.comesBack(id)
	}
	require.EqualError(t, l.check(), "lost=1 of 3 messages\nearly=1 of 3 messages\nforeign=2 of 3 messages")
	require.Equal(t, int64(1), l.twice.Load())
	require.Equal(t, 2, l.back())
}

func TestLedgerIsDoneWithTheLastMessage(t *testing.T) {
	t.Parallel()
	l := newLedger(2)
	for i := range 2 {
		l.waits(i, 0)
		l.comesBack(idOf(i))
	}
	require.NoError(t, l.wait(0))
}

func TestTiersOfAMillionAreDueTogether(t *testing.T) {
	t.Parallel()
	p := newMillionPlan(1000, 10, 30*time.Second) // 100 s to publish
	require.NoError(t, p.tiers.Validate())
	begin := 30 * time.Second // of the time in which all are due
	for message := range p.messages {
		due := time.Duration(message)*100*time.Millisecond + p.tierOf(message)
		require.GreaterOrEqual(t, due, begin+100*time.Second, "message %d is due before all are published", message)
		require.LessOrEqual(t, due, begin+127*time.Second, "message %d is due after the time of one tier", message)
	}
}
