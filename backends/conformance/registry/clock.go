package registry

import "time"

// Clock is a clock that tiers wait by. A retry must not come before its delay is over by this clock.
type Clock struct {
	// Wall: the tiers wait for a time of day, so the wait is measured with the wall clock. That clock can be set, and
	// while it is corrected it runs faster or slower than the monotonic clock (0.5% was seen). The default is the
	// monotonic clock.
	Wall bool

	// Faster is how much faster than the test's clock this clock may run: 0.01 is 1%.
	Faster float64
}

// tick is tolerated on every clock: brokers count in milliseconds.
const tick = time.Millisecond

// Early returns how much too early a retry came, or 0. The wait between failure and retry is measured with both clocks.
func (c Clock) Early(delay, monotonic, wall time.Duration) time.Duration {
	waited := monotonic
	if c.Wall {
		waited = wall
	}
	if waited >= delay-time.Duration(float64(delay)*c.Faster)-tick {
		return 0
	}
	return delay - waited
}

var (
	// wallClock: the server compares the time at which a message is due with its own wall clock. A relay compares the
	// time of day in the failure record with that of its host, because another process may forward the message.
	wallClock = Clock{Wall: true}

	// erlangClock: a TTL counts the milliseconds of Erlang's clock, which runs up to 1% faster while the clock of its
	// host is corrected (https://www.erlang.org/doc/apps/erts/time_correction.html).
	erlangClock = Clock{Faster: 0.01}
)
