// Package socket joins small writes to a network connection into large ones.
package socket

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// gather is how many bytes a corked socket holds before it writes.
const gather = 64 << 10

// A Socket joins all writes between Cork and Uncork into one, and gives every write a deadline. After a failed write it
// closes itself, so that amqp091-go's reader fails as well: amqp091-go ignores a failed flush. Its methods are safe for
// concurrent use.
type Socket struct {
	net.Conn
	timeout  time.Duration
	deadline atomic.Int64 // set by amqp091-go, in Unix nanoseconds; 0: none

	mu    sync.Mutex // also serialises writes
	corks int
	held  []byte
	err   error
}

// New returns a socket that gives every write this timeout.
func New(conn net.Conn, timeout time.Duration) *Socket {
	return &Socket{Conn: conn, timeout: timeout, held: make([]byte, 0, gather)}
}

func (s *Socket) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	if len(s.held)+len(data) > gather {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	if len(data) > gather || s.corks == 0 && len(s.held) == 0 {
		return s.write(data)
	}
	s.held = append(s.held, data...)
	if s.corks == 0 {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}

// Cork holds later writes back until Uncork. Each Cork needs its own Uncork.
func (s *Socket) Cork() {
	s.mu.Lock()
	s.corks++
	s.mu.Unlock()
}

// Uncork writes the bytes that were held back, also those of other goroutines. Later writes of others who have called
// Cork are still held back.
func (s *Socket) Uncork() {
	s.mu.Lock()
	s.corks--
	_ = s.flush() // a failed write closes the connection
	s.mu.Unlock()
}

// Full reports whether enough bytes are held back for one write.
func (s *Socket) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held) > gather/2
}

func (s *Socket) flush() error {
	if s.err != nil || len(s.held) == 0 {
		return s.err
	}
	_, err := s.write(s.held)
	s.held = s.held[:0]
	return err
}

func (s *Socket) write(data []byte) (int, error) {
	limit := time.Now().Add(s.timeout)
	if outer := s.deadline.Load(); outer != 0 && outer < limit.UnixNano() {
		limit = time.Unix(0, outer)
	}
	if err := s.Conn.SetWriteDeadline(limit); err != nil {
		return 0, s.fail(err)
	}
	n, err := s.Conn.Write(data)
	if err != nil {
		return n, s.fail(err)
	}
	return n, nil
}

func (s *Socket) fail(err error) error {
	s.err = err
	_ = s.Conn.Close()
	return err
}

// SetDeadline also bounds the deadlines of later writes.
func (s *Socket) SetDeadline(t time.Time) error {
	s.setOuter(t)
	return s.Conn.SetDeadline(t)
}

// SetWriteDeadline also bounds the deadlines of later writes.
func (s *Socket) SetWriteDeadline(t time.Time) error {
	s.setOuter(t)
	return s.Conn.SetWriteDeadline(t)
}

func (s *Socket) setOuter(t time.Time) {
	if t.IsZero() {
		s.deadline.Store(0)
	} else {
		s.deadline.Store(t.UnixNano())
	}
}
