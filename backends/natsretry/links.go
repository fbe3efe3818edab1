package natsretry

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// links tells all queues of a process that the connection was lost and is there again.
type links struct {
	conn *nats.Conn

	mu     sync.Mutex
	lost   chan struct{} // closed at the next reconnect
	end    chan struct{}
	ended  chan struct{}
	closed bool
}

func newLinks(conn *nats.Conn) *links {
	l := &links{conn: conn, lost: make(chan struct{}), end: make(chan struct{}), ended: make(chan struct{})}
	go l.watch()
	return l
}

// current returns a channel that is closed when the connection that is there now has been replaced.
func (l *links) current() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// watch listens anew after each event, because nats.go can drop a listener that has not read one. The number of
// reconnects shows what was missed.
func (l *links) watch() {
	defer close(l.ended)
	seen := l.conn.Stats().Reconnects
	for {
		events := l.conn.StatusChanged(nats.CONNECTED)
		if now := l.conn.Stats().Reconnects; now != seen {
			seen = now
			l.replaced()
		}
		select {
		case <-events:
			l.conn.RemoveStatusListener(events)
			seen = l.conn.Stats().Reconnects
			l.replaced()
		case <-l.end:
			l.conn.RemoveStatusListener(events)
			return
		}
	}
}

func (l *links) replaced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.lost)
	l.lost = make(chan struct{})
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
