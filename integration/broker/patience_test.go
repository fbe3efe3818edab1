package broker

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestPatienceEndsWhenNothingMoves: a wait outlasts its time while the broker changes, and ends soon after the last change.
func TestPatienceEndsWhenNothingMoves(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		moves time.Duration // how long something moves, from the start
		ends  time.Duration
	}{
		"nothing moves":                 {0, time.Minute + quiet},
		"it moves for the time":         {time.Minute, time.Minute + quiet},
		"it moves for a minute longer":  {2 * time.Minute, 2*time.Minute + quiet},
		"other clients never let it be": {time.Hour, time.Minute + most},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				p := newPatience(time.Minute, func() string {
					return strconv.Itoa(int(min(time.Since(began), row.moves) / time.Second))
				})
				defer p.Check.Stop()
				for {
					<-p.Check.C
					if p.Over() {
						break
					}
				}
				assert.InDelta(t, row.ends, time.Since(began), float64(2*look))
			})
		})
	}
}
