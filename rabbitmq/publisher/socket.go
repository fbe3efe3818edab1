package publisher

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// gather is how many bytes a corked socket holds before it writes.
const gather = 64 << 10

// A socket joins all writes between cork and uncork into one, and gives every write a deadline. After a failed write it closes
// itself, so that amqp091-go's reader fails as well: amqp091-go ignores a failed flush.
type socket struct {
	net.Conn
	timeout  time.Duration
	deadline atomic.Int64 // set by amqp091-go, in Unix nanoseconds; 0: none

	mu     sync.Mutex // also serialises writes
	corked bool
	held   []byte
	err    error
}

func newSocket(conn net.Conn, timeout time.Duration) *socket {
	return &socket{Conn: conn, timeout: timeout, held: make([]byte, 0, gather)}
}

func (s *socket) Write(data []byte) (int, error) {
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
	if len(data) > gather || !s.corked && len(s.held) == 0 {
		return s.write(data)
	}
	s.held = append(s.held, data...)
	if !s.corked {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}

// cork holds later writes back.
func (s *socket) cork() {
	s.mu.Lock()
	s.corked = true
	s.mu.Unlock()
}

// uncork writes the bytes that were held back.
func (s *socket) uncork() {
	s.mu.Lock()
	s.corked = false
	_ = s.flush() // a failed write closes the connection
	s.mu.Unlock()
}

// full reports whether enough bytes are held back for one write.
func (s *socket) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held) > gather/2
}

func (s *socket) flush() error {
	if s.err != nil || len(s.held) == 0 {
		return s.err
	}
	_, err := s.write(s.held)
	s.held = s.held[:0]
	return err
}

func (s *socket) write(data []byte) (int, error) {
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

func (s *socket) fail(err error) error {
	s.err = err
	_ = s.Conn.Close()
	return err
}

func (s *socket) SetDeadline(t time.Time) error {
	s.setOuter(t)
	return s.Conn.SetDeadline(t)
}

func (s *socket) SetWriteDeadline(t time.Time) error {
	s.setOuter(t)
	return s.Conn.SetWriteDeadline(t)
}

func (s *socket) setOuter(t time.Time) {
	if t.IsZero() {
		s.deadline.Store(0)
	} else {
		s.deadline.Store(t.UnixNano())
	}
}
