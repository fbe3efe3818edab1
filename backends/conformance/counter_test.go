package conformance

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counter counts up, and lets a test wait for a number.
type counter struct {
	mu    sync.Mutex
	n     int
	moved chan struct{}
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if c.moved != nil {
		close(c.moved)
		c.moved = nil
	}
}

func (c *counter) await(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		if c.moved == nil {
			c.moved = make(chan struct{})
		}
		got, moved := c.n, c.moved
		c.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-moved:
		case <-deadline:
			require.Failf(t, "the count is too low", "%d of %d within %v", got, n, patience)
		}
	}
}
