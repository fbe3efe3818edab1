package middleware

import (
	"math"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// maxLanes is how many lanes a tier has with jitter.
const maxLanes = 8

// Lanes returns the lanes of a tier: delays over which messages that fail together are spread, so that they do not come
// back together. Lane i of the eight, counted from 0, is the tier's delay and i eighths of delay*jitter, rounded to
// whole milliseconds. The first lane is the tier itself, and the others are longer.
//
//	Lanes(5*time.Second, 0.2) // 5s 5.125s 5.25s 5.375s 5.5s 5.625s 5.75s 5.875s
//
// The result is ascending, without equal delays. It has fewer than eight lanes where delay*jitter is below eight
// milliseconds, or where a lane is above backoff.MaxDelay. It has the delay alone for a jitter that is not from above 0
// to 1, and for a delay that is not valid.
func Lanes(delay time.Duration, jitter float64) []time.Duration {
	lanes := []time.Duration{delay}
	valid := delay >= time.Millisecond && delay <= backoff.MaxDelay && delay%time.Millisecond == 0
	if !valid || !(jitter > 0 && jitter <= 1) {
		return lanes
	}
	width := float64(delay/time.Millisecond) * jitter // a float64 has every whole millisecond up to MaxDelay
	for i := 1; i < maxLanes; i++ {
		lane := delay + time.Duration(math.Round(width*float64(i)/maxLanes))*time.Millisecond
		if lane <= backoff.MaxDelay {
			lanes = append(lanes, lane)
		}
	}
	return slices.Compact(lanes)
}
