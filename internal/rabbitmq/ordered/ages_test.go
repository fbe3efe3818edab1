package ordered

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
		var a ages
		for tag := range uint64(1000) {
			a.add(tag + 1)
			assert.Zero(t, a.of(tag+2), "all are acknowledged")
			time.Sleep(2 * time.Second)
		}
		assert.Len(t, a.list, 1)
		time.Sleep(time.Hour)
		a.add(1001)
		assert.Zero(t, a.of(1001), "it is not as old as the one before it")
		time.Sleep(time.Minute)
		a.add(1002)
		assert.Equal(t, time.Minute, a.of(1001))
		assert.Zero(t, a.of(1002))
	})
}
