package claims

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func exact(delay time.Duration) time.Duration { return delay }

func TestLedgerCountsByIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(3, Always(time.Second), exact)
		for i := range 3 {
			delay, fails := l.Call(ID(i), 0)
			assert.Equal(t, time.Second, delay)
			assert.True(t, fails)
		}
		time.Sleep(time.Second + 5*time.Millisecond)
		for range 2 { // message 1 is doubled, so that messages 1 and 2 do not cancel each other out
			_, fails := l.Call(ID(1), 1)
			assert.False(t, fails)
		}
		l.Call(ID(0), 1)
		assert.Equal(t, 2, l.Back())
		require.EqualError(t, l.Check(), "lost=1 of 3 messages")
		assert.Equal(t, 1, l.twice)
		_, fails := l.Call(ID(2), 0)
		assert.True(t, fails, "it was delivered twice before its copy was: only the count of its failures tells")
		assert.Equal(t, 2, l.twice)

		l.Call(ID(2), 1)
		require.NoError(t, l.Wait())
		assert.Equal(t, 5*time.Millisecond, Percentile(l.Late, 0.99))

		l.Call("another app's", 0)
		l.Call(ID(3), 0)
		l.Call(ID(0), 2)
		require.EqualError(t, l.Check(), "foreign=3 of 3 messages")
	})
}

func TestLedgerNamesEarlyMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(4, Always(time.Second), exact)
		l.Fails = func(message int) bool { return message > 0 }
		_, fails := l.Call(ID(0), 0)
		assert.False(t, fails)
		for i := 1; i < 3; i++ {
			assert.True(t, l.Fail(ID(i)))
		}
		time.Sleep(time.Second - 1)
		l.Call(ID(1), 1)
		time.Sleep(time.Nanosecond)
		l.Call(ID(2), 1)
		l.Call(ID(3), 1)
		require.EqualError(t, l.Check(), "early=2 of 4 messages", "one too early, and one that never failed")
	})
}

func TestLedgerReportsALossAfterItsPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(2, Always(0), exact)
		l.Call(ID(0), 0)
		require.EqualError(t, l.Wait(), "lost=2 of 2 messages")
	})
}

// TestRace: no call returns before the first message waits, and the time is that from then on.
func TestRace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(1, Always(time.Second), exact)
		go func() {
			time.Sleep(time.Minute)
			assert.True(t, l.Handle(ID(0), 0))
			time.Sleep(time.Second)
			assert.False(t, l.Handle(ID(0), 1))
		}()
		took, err := l.Race("")
		require.NoError(t, err)
		assert.Equal(t, time.Second, took)

		_, err = NewLedger(1, Always(0), exact).Race("")
		require.EqualError(t, err, "no message was delivered within 2m0s")
	})
}
