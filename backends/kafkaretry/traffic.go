package kafkaretry

import (
	"net"
	"sync"
	"time"
)

// traffic is that of the connections of a client. It asks no broker: a client in a consumer group sends heartbeats, and
// a broker answers each request of it soon.
type traffic struct {
	mu    sync.Mutex
	open  map[*requests]bool
	since time.Time // the oldest request that a closed connection has left without an answer; zero: there is none
}

// requests are those of a connection.
type requests struct {
	net.Conn
	traffic *traffic
	since   time.Time // when the first one after the last answer was sent; zero: there is none
}

func (t *traffic) watch(connection net.Conn) net.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[*requests]bool{}
	}
	r := &requests{Conn: connection, traffic: t}
	t.open[r] = true
	return r
}

// unanswered returns when the oldest request without an answer was sent, or zero. An answer of any broker is enough for
// those of closed connections: the client does not ask on them again.
func (t *traffic) unanswered() (since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since = t.since
	for r := range t.open {
		since = earlier(since, r.since)
	}
	return since
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (r *requests) Write(b []byte) (int, error) {
	r.traffic.mu.Lock()
	if r.since.IsZero() {
		r.since = time.Now()
	}
	r.traffic.mu.Unlock()
	return r.Conn.Write(b)
}

func (r *requests) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if n > 0 {
		r.traffic.mu.Lock()
		defer r.traffic.mu.Unlock()
		r.since, r.traffic.since = time.Time{}, time.Time{}
	}
	return n, err
}

func (r *requests) Close() error {
	r.traffic.mu.Lock()
	if r.traffic.open[r] {
		delete(r.traffic.open, r)
		r.traffic.since = earlier(r.traffic.since, r.since)
	}
	r.traffic.mu.Unlock()
	return r.Conn.Close()
}
