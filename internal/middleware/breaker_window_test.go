package middleware

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWindowCountsTheLastOutcomes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for _, least := range []int{1, 3, 20, 100} {
		t.Run(fmt.Sprint(least), func(t *testing.T) {
			w := newWindow(least, time.Second, 1+random.IntN(200))
			var all []timed
			for range 5000 {
				now := timed{failed: random.IntN(2) == 0}
				if len(all) > 0 {
					now.at = all[len(all)-1].at + time.Duration(random.IntN(20))*time.Millisecond*time.Duration(random.IntN(2))
				}
				all = append(all, now)
				w.add(now.at, now.failed)
				count, failures := 0, 0
				for _, past := range all[max(len(all)-5*least, 0):] {
					if now.at-past.at <= time.Second {
						count++
						if past.failed {
							failures++
						}
					}
				}
				require.Equal(t, [2]int{count, failures}, [2]int{w.count, w.failures})
			}
		})
	}
}
