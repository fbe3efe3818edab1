package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	t.Parallel()
	b := Backoff{Initial: 100 * time.Millisecond, Max: 500 * time.Millisecond}
	for range 2 {
		for _, bound := range []time.Duration{100, 200, 400, 500, 500} {
			bound *= time.Millisecond
			assert.Equal(t, bound, b.Bound())
			pause := b.Next()
			assert.LessOrEqual(t, pause, bound)
			assert.GreaterOrEqual(t, pause, bound/2)
		}
		b.Reset()
	}
	b.AtLeast(time.Second)
	assert.Equal(t, time.Second, b.Bound())
	assert.GreaterOrEqual(t, b.Next(), 500*time.Millisecond)
	assert.Equal(t, b.Max, b.Bound())
}
