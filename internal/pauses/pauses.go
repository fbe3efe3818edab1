// Package pauses has the pause between attempts that fail.
package pauses

import (
	"context"
	"math/rand/v2"
	"time"
)

// First and Longest are the bounds of a pause that has no others.
const (
	First   = 100 * time.Millisecond
	Longest = 5 * time.Second
)

// After returns the pause after an attempt that has failed, and as many failures in a row before it. It doubles with
// each of them, up to Longest. It is shortened at random by up to a half, so that others do not try at the same moment.
func After(failures int) time.Duration { return Jitter(Doubled(First, int64(failures), Longest)) }

// Doubled returns a pause of at least a millisecond that has doubled so many times, up to the longest.
func Doubled(pause time.Duration, times int64, longest time.Duration) time.Duration {
	return min(pause<<min(times, 20), longest)
}

// Jitter shortens a pause at random by up to a half.
func Jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause/2+1) }

// Sleep returns at the end of a pause, and before with the cause where ctx ends.
func Sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
