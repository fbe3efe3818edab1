package postgresretry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A topic is read often after something was published to it, and then more and more seldom. The reads of a process do
// not grow with its topics.
func TestPauseOfAnAppTopic(t *testing.T) {
	t.Parallel()
	a := &appTopic{}
	reads := func(from, to time.Duration, topics int) (n int) {
		for at := time.Duration(0); at < to; at += a.pause(at, topics) {
			if at >= from {
				n++
			}
		}
		return n
	}
	assert.InDelta(t, 11, reads(0, time.Second, 100), 1)
	assert.InDelta(t, 31, reads(0, time.Minute, 100), 2)
	assert.InDelta(t, 10, reads(time.Hour, time.Hour+1000*time.Second, 100), 1)
	assert.InDelta(t, 10, reads(time.Hour, time.Hour+10*time.Second, 1), 1)
	a.blind.Store(true)
	assert.InDelta(t, 10, reads(time.Hour, time.Hour+time.Second, 1), 1)
	assert.InDelta(t, 10, reads(time.Hour, time.Hour+100*time.Second, 100), 1)
}

// A topic that waits for the statements of others is not read for their reason. The end of its subscription ends the wait.
func TestReadThatWaitsForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errDown := errors.New("no route to host")
		s := newSource(nil, nil)
		require.NoError(t, s.place(t.Context()))
		s.leave(errDown)
		for range cap(s.moving) {
			require.NoError(t, s.place(t.Context()))
		}
		began := time.Now()
		_, _, err := s.read(t.Context(), &appTopic{}, 1, false)
		require.ErrorIs(t, err, errDown)
		assert.Equal(t, statementTimeout, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = s.read(ctx, &appTopic{}, 1, false)
		require.Error(t, err)
		assert.Equal(t, statementTimeout+time.Second, time.Since(began))
	})
}
