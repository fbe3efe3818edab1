package postgresretry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
