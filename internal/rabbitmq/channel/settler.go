package channel

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// An acknowledger is an AMQP channel.
type acknowledger interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// A corker holds writes back between Cork and Uncork.
type corker interface {
	Cork()
	Uncork()
}

// A settler sends the acks and nacks of one channel. One goroutine takes all that are ready and sends them in one
// write. A run of acks from the lowest outstanding delivery tag leaves as one ack of multiple deliveries.
type settler struct {
	channel  acknowledger
	socket   corker
	stopping context.Context
	wake     chan struct{} // has room for one
	flushed  chan struct{} // closed when run has returned

	// Lost ends when nothing can be settled any more, and the broker delivers it again. Its cause is the reason.
	Lost context.Context
	lose context.CancelCauseFunc

	mu     sync.Mutex
	acks   []uint64
	nacks  []uint64
	held   []uint64 // nacks that have to wait for the end of the consumer
	ended  bool     // the consumer has ended
	closed bool     // nothing more is taken

	low atomic.Uint64 // what Lowest returns

	// Of the goroutine in run.
	sent  tags
	spare []uint64
}

func newSettler(channel acknowledger, socket corker, stopping context.Context) *settler {
	s := &settler{
		channel: channel, socket: socket, stopping: stopping,
		wake: make(chan struct{}, 1), flushed: make(chan struct{}), sent: tags{{0, 0}},
	}
	s.Lost, s.lose = context.WithCancelCause(context.Background())
	s.low.Store(1)
	return s
}

// Ack reports whether the ack will be sent.
func (s *settler) Ack(tag uint64) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	first := len(s.acks) == 0
	s.acks = append(s.acks, tag)
	s.mu.Unlock()
	if first {
		s.signal()
	}
	return true
}

// Nack requeues a delivery. While the subscription stops, and its consumer has not ended, the nack is held back: the
// broker would deliver the message to this consumer once more.
func (s *settler) Nack(tag uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if !s.ended && s.stopping.Err() != nil {
		s.held = append(s.held, tag)
		return
	}
	s.nacks = append(s.nacks, tag)
	s.signal()
}

// ConsumerEnded sends the nacks that were held back, in the order of the deliveries: a quorum queue delivers messages
// in the order in which they went back.
func (s *settler) ConsumerEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	slices.Sort(s.held)
	s.nacks = append(s.nacks, s.held...)
	s.held = nil
	s.signal()
}

// Lowest returns the lowest delivery tag whose ack or nack was not sent.
func (s *settler) Lowest() uint64 { return s.low.Load() }

func (s *settler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Flush sends all that is ready, and takes nothing more.
func (s *settler) Flush() {
	s.mu.Lock()
	s.closed = true
	s.signal()
	s.mu.Unlock()
	<-s.flushed
}

// End drops all that is ready: the channel is closed, or will be.
func (s *settler) End(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.lose(reason)
}

func (s *settler) run() {
	defer close(s.flushed)
	for {
		select {
		case <-s.wake:
		case <-s.Lost.Done():
			return
		}
		// Handlers that are about to ack run before the write, not after it.
		runtime.Gosched()
		s.mu.Lock()
		closed, nacks, acks := s.closed, s.nacks, s.acks
		s.nacks, s.acks = nil, s.spare[:0]
		s.mu.Unlock()
		if len(acks)+len(nacks) > 0 {
			s.send(acks, nacks)
		}
		if s.spare = acks; closed {
			return
		}
	}
}

// send writes frames. It ignores errors: the channel is closed then, and watch sees it.
func (s *settler) send(acks, nacks []uint64) {
	s.socket.Cork()
	defer s.socket.Uncork()
	slices.Sort(acks)
	run, last := 0, uint64(0)
	for len(acks) > 0 && acks[0] == s.sent.low() {
		last = acks[0]
		s.sent = s.sent.add(last)
		acks = acks[1:]
		run++
	}
	if run > 0 {
		_ = s.channel.Ack(last, run > 1)
	}
	for _, tag := range acks {
		s.sent = s.sent.add(tag)
		_ = s.channel.Ack(tag, false)
	}
	for _, tag := range nacks {
		s.sent = s.sent.add(tag)
		_ = s.channel.Nack(tag, false, true)
	}
	s.low.Store(s.sent.low())
}

// tags is a set of delivery tags: spans, ascending, with a gap between each two of them. The first one begins with 0. A
// channel's tags are 1, 2, 3 and so on, so there are at most as many others as there are outstanding deliveries.
type tags []span

type span struct{ first, last uint64 }

// low returns the lowest tag that is not in the set.
func (t tags) low() uint64 { return t[0].last + 1 }

// add returns the set with a tag that is not in it.
func (t tags) add(tag uint64) tags {
	at, _ := slices.BinarySearchFunc(t, tag, func(s span, tag uint64) int { return cmp.Compare(s.first, tag) })
	if at < len(t) && t[at].first == tag+1 {
		t[at].first = tag
	} else {
		t = slices.Insert(t, at, span{tag, tag})
	}
	if t[at-1].last+1 == tag {
		t[at-1].last = t[at].last
		t = slices.Delete(t, at, at+1)
	}
	return t
}
