package registry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
)

// TestEachBackendIsEarlyByItsOwnClock: the other clock does not excuse a retry that is early.
func TestEachBackendIsEarlyByItsOwnClock(t *testing.T) {
	t.Parallel()
	const delay = 10 * time.Second
	for _, e := range registry.All() {
		tolerance, wall := time.Millisecond, true
		if strings.HasPrefix(e.Name, "rabbitmq") {
			tolerance, wall = 101*time.Millisecond, false
		}
		for _, test := range []struct{ own, other, want time.Duration }{
			{delay, delay, 0},
			{delay - tolerance, 0, 0},
			{delay - tolerance - 1, 2 * delay, tolerance + 1},
			{0, 2 * delay, delay},
		} {
			monotonic, byWall := test.own, test.other
			if wall {
				monotonic, byWall = test.other, test.own
			}
			assert.Equal(t, test.want, e.Expect.Clock.Early(delay, monotonic, byWall), "%s: %+v", e.Name, test)
		}
	}
}

// TestNewBackendWaitsByTheMonotonicClock: the zero value tolerates a millisecond.
func TestNewBackendWaitsByTheMonotonicClock(t *testing.T) {
	t.Parallel()
	var clock registry.Clock
	assert.Zero(t, clock.Early(time.Second, 999*time.Millisecond, 0))
	assert.Equal(t, 2*time.Millisecond, clock.Early(time.Second, 998*time.Millisecond, time.Minute))
}
