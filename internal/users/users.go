// Package users counts who uses something that is closed when the last user has left.
package users

import "sync"

// Count counts users. The zero value is ready for use. It is safe for concurrent use.
type Count struct {
	mu     sync.Mutex
	users  int
	closed bool
	idle   chan struct{} // nil until a caller waits for it
}

// Enter reports whether the thing may be used: it is not closed. Each user calls Leave.
func (c *Count) Enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.users++
	}
	return !c.closed
}

// Leave ends an Enter.
func (c *Count) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	if c.closed && c.users == 0 {
		close(c.channel())
	}
}

// Close lets no more users enter. It may be called several times. The channel is closed when all users have left.
func (c *Count) Close() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.users == 0 {
		close(c.channel())
	}
	c.closed = true
	return c.channel()
}

// Idle returns the channel that Close returns.
func (c *Count) Idle() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channel()
}

func (c *Count) channel() chan struct{} {
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	return c.idle
}
