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
	latency func() time.Duration // the delay of what is read

	mu       sync.Mutex
	slow     time.Duration // as well
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
	var arrives time.Time // what is in the buffer
	for {
		p.mu.Lock()
		n, err := p.take(data, &arrives)
		until := p.deadline
		if until.IsZero() || !arrives.IsZero() && arrives.Before(until) {
			until = arrives
		}
		p.mu.Unlock()
		if n > 0 || err != nil {
			return n, err
		}
		var timeout <-chan time.Time
		if !until.IsZero() {
			timeout = time.After(time.Until(until))
		}
		select {
		case <-p.wake:
		case <-timeout:
		}
	}
}

// take reads what has arrived. It sets when the rest arrives. mu is held.
func (p *pipe) take(data []byte, arrives *time.Time) (n int, err error) {
	written := !p.silent && len(p.buffer) > 0
	switch {
	case !written:
		*arrives = time.Time{}
	case arrives.IsZero():
		*arrives = time.Now().Add(p.latency() + p.slow)
	}
	switch now := time.Now(); {
	case !p.deadline.IsZero() && !now.Before(p.deadline):
		return 0, os.ErrDeadlineExceeded
	case written && !now.Before(*arrives):
		n = copy(data, p.buffer)
		p.buffer = p.buffer[n:]
	case !written && p.closed && !p.silent:
		err = io.EOF
	}
	return n, err
}

// change changes the pipe, and lets its reader look again.
func (p *pipe) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	p.signal()
}

// close ends the pipe. What was written and not read arrives, or is lost, as at a reset.
func (p *pipe) close(lost bool) {
	p.change(func() {
		p.closed = true
		if lost {
			p.buffer = nil
		}
	})
}

// hangUp closes the pipe for its reader, which does not wait for a silent network.
func (p *pipe) hangUp() {
	p.change(func() { p.closed, p.silent, p.buffer = true, false, nil })
}

func (p *pipe) setSilent()               { p.change(func() { p.silent = true }) }
func (p *pipe) setSlow(by time.Duration) { p.change(func() { p.slow = by }) }
func (p *pipe) setDeadline(at time.Time) { p.change(func() { p.deadline = at }) }

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
	e.in.hangUp()
	e.out.close(false)
	return nil
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
