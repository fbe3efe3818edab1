package wire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Once does what lasts as long as an AMQP connection, such as declarations: each thing once on a connection, and again
// where it may be gone. Callers that need the same thing at the same time share one call. Errors are not remembered.
// The zero value is ready. It is safe for concurrent use.
type Once[K comparable] struct {
	mu         sync.RWMutex
	connection uint64
	calls      map[K]*call // on this connection
}

// A call is under way, or has succeeded.
type call struct {
	began   time.Time
	running bool
	done    chan struct{}
	err     error // set before done is closed
}

var errExited = errors.New("it has ended its goroutine")

// Do calls do, unless a call for the key that began after lostAt has succeeded on this connection. Each connection has
// a higher number than those before it. Where a call is under way, Do waits for it, and returns its error if it began
// after lostAt. When ctx ends, Do returns its cause. The call goes on then, and later callers wait for it.
func (o *Once[K]) Do(ctx context.Context, connection uint64, key K, lostAt time.Time, do func() error) error {
	for {
		c, own, err := o.start(connection, key, lostAt, do)
		if err != nil {
			return err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if own || c.began.After(lostAt) {
			return c.err
		}
	}
}

// start returns the call for the key, and whether it has started it.
func (o *Once[K]) start(connection uint64, key K, lostAt time.Time, do func() error) (c *call, own bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if connection < o.connection {
		return nil, false, fmt.Errorf("its connection is lost: %w", amqp091.ErrClosed)
	}
	if connection > o.connection || o.calls == nil {
		o.connection, o.calls = connection, map[K]*call{}
	}
	if c = o.calls[key]; c != nil && (c.running || c.began.After(lostAt)) {
		return c, false, nil
	}
	c = &call{began: time.Now(), running: true, done: make(chan struct{}), err: errExited}
	o.calls[key] = c
	go func() {
		defer o.end(key, c)
		c.err = do()
	}()
	return c, true, nil
}

func (o *Once[K]) end(key K, c *call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.running = false; c.err != nil && o.calls[key] == c {
		delete(o.calls, key)
	}
	close(c.done)
}

// Began returns when the call for the key began that has succeeded on this connection. Zero: there is none.
func (o *Once[K]) Began(connection uint64, key K) (at time.Time) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if c := o.calls[key]; c != nil && connection == o.connection && !c.running {
		at = c.began
	}
	return at
}
