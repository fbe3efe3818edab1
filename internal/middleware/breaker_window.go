package middleware

import (
	"math"
	"time"
)

// windowOfLeast is how many times Least outcomes a window has at most. So a handler that had only successes pauses
// after a known number of failures: Ratio of that many.
const windowOfLeast = 5

// A window has the last outcomes of a handler: at most size of them, and none that is older than age.
type window struct {
	size     int
	age      time.Duration
	outcomes []timed // a ring
	first    int
	count    int
	failures int
}

// timed is an outcome and its time.
type timed struct {
	at     time.Duration
	failed bool
}

// newWindow makes a window that has memory for so many outcomes.
func newWindow(least int, age time.Duration, prepared int) window {
	size := windowOfLeast * min(least, math.MaxInt/windowOfLeast)
	return window{size: size, age: age, outcomes: make([]timed, min(size, prepared))}
}

// add adds an outcome. It costs no allocation, except where a window outgrows its memory.
func (w *window) add(at time.Duration, failed bool) {
	for w.count > 0 && at-w.outcomes[w.first].at > w.age {
		w.drop()
	}
	switch {
	case w.count == w.size:
		w.drop()
	case w.count == len(w.outcomes):
		larger := make([]timed, min(2*w.count, w.size))
		copied := copy(larger, w.outcomes[w.first:])
		copy(larger[copied:], w.outcomes[:w.first])
		w.outcomes, w.first = larger, 0
	}
	w.outcomes[(w.first+w.count)%len(w.outcomes)] = timed{at, failed}
	w.count++
	if failed {
		w.failures++
	}
}

// drop removes the oldest outcome.
func (w *window) drop() {
	if w.outcomes[w.first].failed {
		w.failures--
	}
	w.first = (w.first + 1) % len(w.outcomes)
	w.count--
}

func (w *window) clear() { w.first, w.count, w.failures = 0, 0, 0 }
