package natsretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

var errAway = errors.New("the connection to NATS is lost")

// links tells all queues of a process that the connection was lost and is there again.
type links struct {
	conn *nats.Conn

	mu      sync.Mutex
	lost    context.Context // ends at the next reconnect, or when the connection is closed
	lose    context.CancelFunc
	seen    uint64 // number of reconnects
	readers map[context.Context]bool
	end     chan struct{}
	ended   chan struct{}
	closed  bool
}

func newLinks(conn *nats.Conn) *links {
	l := &links{
		conn: conn, seen: conn.Stats().Reconnects, readers: map[context.Context]bool{}, end: make(chan struct{}),
		ended: make(chan struct{}),
	}
	l.lost, l.lose = context.WithCancel(context.Background())
	go l.watch()
	return l
}

// live waits for a connection, and returns a context that ends when it has been replaced or closed. Where none comes,
// the error is why.
func (l *links) live(ctx context.Context) (context.Context, error) {
	for {
		l.mu.Lock()
		lost, seen := l.lost, l.seen
		l.mu.Unlock()
		switch {
		case l.conn.IsClosed():
			return nil, l.fault()
		case l.conn.IsConnected() && l.conn.Stats().Reconnects == seen:
			return lost, nil
		}
		select {
		case <-lost.Done():
		case <-ctx.Done():
			return nil, errAway
		}
	}
}

// read records in the subscription of a context, until it ends, whether there is a connection.
func (l *links) read(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[ctx] = true
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.readers, ctx)
	})
	if err := l.fault(); err != nil {
		subscriptions.Read(ctx, err)
	}
}

// answered records in the subscription of a context that its topic can be read. An answer can be read after the
// connection was lost.
func (l *links) answered(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault() == nil {
		subscriptions.Read(ctx, nil)
	}
}

// fault returns why there is no connection. Before the connection is closed, its last error can be of something else.
func (l *links) fault() error {
	switch {
	case l.conn.IsConnected():
		return nil
	case l.conn.IsClosed():
		return fmt.Errorf("the connection to NATS is closed: %w", cmp.Or(l.conn.LastError(), nats.ErrConnectionClosed))
	default:
		return errAway
	}
}

func (l *links) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	fault := l.fault()
	for ctx := range l.readers {
		subscriptions.Read(ctx, fault)
	}
}

// watch listens anew after each event, because nats.go can drop a listener that has not read one. The number of
// reconnects shows what was missed.
func (l *links) watch() {
	defer close(l.ended)
	last := error(nil)
	for {
		events := l.conn.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
		l.replaced()
		if fault := l.fault(); fmt.Sprint(fault) != fmt.Sprint(last) {
			last = fault
			l.changed()
		}
		select {
		case <-events:
			l.conn.RemoveStatusListener(events)
		case <-l.end:
			l.conn.RemoveStatusListener(events)
			return
		}
	}
}

// replaced ends what waits for a connection that has been replaced, or for another one where there will be none.
func (l *links) replaced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, closed := l.conn.Stats().Reconnects, l.conn.IsClosed()
	if now == l.seen && !closed {
		return
	}
	l.lose()
	l.seen = now
	if !closed {
		l.lost, l.lose = context.WithCancel(context.Background())
	}
}

func (l *links) close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if !closed {
		close(l.end)
	}
	<-l.ended
}
