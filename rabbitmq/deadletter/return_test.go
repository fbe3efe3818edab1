package deadletter

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestTheSetOfDeliveryTagsGrowsByAShare, and not by a constant: each growth copies the whole set.
func TestTheSetOfDeliveryTagsGrowsByAShare(t *testing.T) {
	const most = 1_000_000
	var set *bits
	allocations := testing.AllocsPerRun(1, func() {
		set = &bits{}
		for tag := uint64(1); tag <= most; tag += 2 {
			set.set(tag)
		}
	})
	assert.Less(t, allocations, 200.0)
	assert.EqualValues(t, most/2, set.all.Load())
	for tag := range uint64(most + 200) {
		if want := tag%2 == 1 && tag < most; set.has(tag) != want {
			assert.Fail(t, "wrong", "tag %d: has must be %v", tag, want)
		}
	}
	set.set(3 * most)
	assert.True(t, set.has(3*most))
	assert.False(t, set.has(3*most-1))
}
