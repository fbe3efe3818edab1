package cli

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/letters"
)

// TestMeterWithoutWatch: no letter is sent while a canary is watched, so that time is no part of the rate.
func TestMeterWithoutWatch(t *testing.T) {
	t.Parallel()
	m := (&env{stderr: io.Discard}).meter("redrive", "sent")
	defer m.stop()
	at := func(phase letters.Phase, elapsed time.Duration, done int) letters.Progress {
		return letters.Progress{Summary: letters.Summary{Total: 100, Done: done, Unseen: 100 - done}, Phase: phase, Elapsed: elapsed}
	}
	m.show(at(letters.Canary, 0, 5))
	m.show(at(letters.Watching, time.Second, 10))
	m.show(at(letters.Watching, 30*time.Second, 10))
	m.show(at(letters.Looking, 61*time.Second, 10))
	p := at(letters.Looking, 62*time.Second, 20)
	m.show(p)
	assert.Equal(t, time.Minute, m.watchedFor())
	assert.Equal(t, "20 of 100 sent, 10/s, 8s left", m.message(p))
}
