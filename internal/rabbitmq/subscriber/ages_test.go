package subscriber

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestAges: the age of the oldest delivery is known to a second, and what is acknowledged is forgotten.
func TestAges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &session{settler: &settler{}}
		arrive := func(tag uint64) {
			n.ages.add(tag)
			n.arrived.Store(tag)
		}
		n.settler.low.Store(1)
		for tag := range uint64(1000) {
			arrive(tag + 1)
			n.settler.low.Store(tag + 2)
			assert.Zero(t, n.waited(), "all are acknowledged")
			time.Sleep(2 * time.Second)
		}
		assert.Len(t, n.ages.list, 1)
		time.Sleep(time.Hour)
		n.ages.add(1001) // it is seen with the next statement
		assert.Zero(t, n.waited())
		n.arrived.Store(1001)
		assert.Zero(t, n.waited(), "it is not as old as the one before it")
		time.Sleep(time.Minute)
		arrive(1002)
		assert.Equal(t, time.Minute, n.waited())
		n.settler.low.Store(1002)
		assert.Zero(t, n.waited())
	})
}
