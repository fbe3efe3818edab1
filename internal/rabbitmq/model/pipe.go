package model

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe is one way of a connection. Writing never blocks.
type pipe struct {
	latency func() time.Duration // of what is read

	mu       sync.Mutex
	buffer   []byte
	closed   bool // nothing is written any more; what is in the buffer can be read
	silent   bool // nothing arrives, and no end
	deadline time.Time
	wake     chan struct{}
}

func newPipe(latency func() time.Duration) *pipe {
	return &pipe{latency: latency, wake: make(chan struct{}, 1)}
}

func (p *pipe) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pipe) write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, net.ErrClosed
	}
	p.buffer = append(p.buffer, data...)
	p.signal()
	return len(data), nil
}

// read has one caller at a time.
func (p *pipe) read(data []byte) (int, error) {
	for delayed := false; ; {
		p.mu.Lock()
		var timeout <-chan time.Time
		left := time.Until(p.deadline)
		switch ready := !p.silent && len(p.buffer) > 0; {
		case !p.deadline.IsZero() && left <= 0:
			p.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case ready && !delayed:
			p.mu.Unlock()
			time.Sleep(p.latency())
			delayed = true
			continue
		case ready:
			n := copy(data, p.buffer)
			p.buffer = p.buffer[n:]
			p.mu.Unlock()
			return n, nil
		case p.closed && !p.silent:
			p.mu.Unlock()
			return 0, io.EOF
		case !p.deadline.IsZero():
			timeout = time.After(left)
		}
		p.mu.Unlock()
		select {
		case <-p.wake:
		case <-timeout:
		}
	}
}

// close ends the pipe. What was written and not read arrives, or is lost, as at a reset.
func (p *pipe) close(lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if lost {
		p.buffer = nil
	}
	p.signal()
}

func (p *pipe) setSilent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

func (p *pipe) setDeadline(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = at
	p.signal()
}

// end is one end of a connection.
type end struct {
	in, out *pipe
	host    string
}

func (e end) Read(data []byte) (int, error)      { return e.in.read(data) }
func (e end) Write(data []byte) (int, error)     { return e.out.write(data) }
func (e end) LocalAddr() net.Addr                { return address(e.host) }
func (e end) RemoteAddr() net.Addr               { return address(e.host) }
func (e end) SetDeadline(at time.Time) error     { return e.SetReadDeadline(at) }
func (e end) SetReadDeadline(at time.Time) error { e.in.setDeadline(at); return nil }
func (e end) SetWriteDeadline(time.Time) error   { return nil } // writing never blocks

// Close ends both ways. The other end still reads what was written.
func (e end) Close() error {
	e.in.mu.Lock()
	e.in.silent = false // the owner of this end does not wait for the network
	e.in.mu.Unlock()
	e.in.close(true)
	e.out.close(false)
	return nil
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
