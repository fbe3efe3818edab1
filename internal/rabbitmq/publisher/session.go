package publisher

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A session is one channel in confirm mode. The package's documentation shows the ways in which it ends.
type session struct {
	connection  *wire.Connection
	channel     *amqp091.Channel
	opened      time.Time
	maxInFlight int

	retired chan struct{} // closed when another session is to take new messages
	retire  sync.Once     // closes retired
	givenUp chan struct{} // closed when no more messages are written and no confirms are awaited
	give    sync.Once     // closes givenUp
	writing sync.Mutex    // held while a message is written: after channel.close, a write would close the connection
	closing bool          // guarded by writing: channel.close has been or will be sent
	closes  chan *amqp091.Error
	closed  chan struct{}  // closed when the channel is
	lost    chan struct{}  // closed before it, unless the publisher has closed the channel
	reason  *amqp091.Error // set before closed is closed; nil: closed without an error, as the publisher does

	abandoned atomic.Int64 // messages whose callers have left before the confirm

	returns  chan amqp091.Return // never full: at most maxInFlight messages can be returned
	mu       sync.Mutex
	returned map[string]*amqp091.Return // the messages that came back and are not claimed yet, by id
}

func newSession(c *wire.Connection, channel *amqp091.Channel, maxInFlight int) *session {
	return &session{
		connection:  c,
		channel:     channel,
		opened:      time.Now(),
		maxInFlight: maxInFlight,
		retired:     make(chan struct{}),
		givenUp:     make(chan struct{}),
		closes:      channel.NotifyClose(make(chan *amqp091.Error, 1)),
		closed:      make(chan struct{}),
		lost:        make(chan struct{}),
		returns:     channel.NotifyReturn(make(chan amqp091.Return, maxInFlight)),
		returned:    make(map[string]*amqp091.Return),
	}
}

// watchClosed closes s.closed when the channel is closed, and s.lost when the broker has closed it.
func (s *session) watchClosed() {
	if s.reason = <-s.closes; s.reason != nil {
		learn(s.connection, s.reason)
		close(s.lost)
	}
	close(s.closed)
}

// put writes a message. The error amqp091.ErrClosed means that nothing was written.
func (s *session) put(r *request) (*amqp091.DeferredConfirmation, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closing {
		return nil, amqp091.ErrClosed
	}
	return s.channel.PublishWithDeferredConfirm(r.exchange, r.routingKey, true, false, r.publishing)
}

// usable reports whether messages can be written: the session is neither given up nor closed.
func (s *session) usable() bool {
	select {
	case <-s.givenUp:
		return false
	default:
		return !s.channel.IsClosed()
	}
}

// claim reports whether the broker returned the publish with this id. It is called after the confirm of the publish.
// The return comes before the confirm, so it is in s.returns, or another caller has moved it to s.returned.
func (s *session) claim(id string) (*amqp091.Return, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.returns) > 0 {
		s.collectReturns()
	}
	r, found := s.returned[id]
	delete(s.returned, id)
	return r, found
}

// collectReturns moves the returns that have arrived to s.returned. It is a function of its own because a return is
// large, and every publish needs the stack of claim.
//
//go:noinline
func (s *session) collectReturns() {
	for {
		select {
		case r, open := <-s.returns:
			if !open {
				return
			}
			returnedID, _ := r.Headers[IDHeader].(string)
			s.returned[returnedID] = &r
		default:
			return
		}
	}
}

// retireAge is the least age of a session that a nack retires. On RabbitMQ 3.10, a full quorum queue that has refused a
// message refuses all later ones from the same channel, even when it has room again.
const retireAge = 10 * time.Second

// nacked retires the session if it is old enough.
func (s *session) nacked() {
	if time.Since(s.opened) > retireAge {
		s.retire.Do(func() { close(s.retired) })
	}
}

// awaitAbandoned waits for the confirm of a message whose caller has left, or until the session is given up.
func (s *session) awaitAbandoned(r *request) {
	s.abandoned.Add(1)
	s.giveUpIfStuck()
	select {
	case <-r.confirm.Done():
		s.claim(r.id)
	case <-s.givenUp:
	}
	s.abandoned.Add(-1)
}

// hasLost reports whether the broker has closed the channel before it confirmed a message. It is called when
// awaitAbandoned has returned.
func (s *session) hasLost(r *request) bool {
	select {
	case <-r.confirm.Done():
	default:
		return false
	}
	if r.confirm.Acked() || !s.channel.IsClosed() {
		return false
	}
	<-s.closed
	return s.reason != nil
}

// giveUpIfStuck gives the session up when abandoned messages hold more than half of all slots, which happens when a
// queue never confirms. It does not while the broker blocks the connection: the broker then reads nothing, so a new
// channel would not open.
func (s *session) giveUpIfStuck() {
	if 2*s.abandoned.Load() > int64(s.maxInFlight) && !s.connection.Blocked.Load() {
		s.giveUp()
	}
}

// giveUp takes the session out of use. The caller makes sure that close is called.
func (s *session) giveUp() { s.give.Do(func() { close(s.givenUp) }) }

var errGivenUp = errors.New("the publisher gave up the channel: too many messages were never confirmed")

// channelCloseTimeout is how long the broker may take to close a channel. A channel that waits for a quorum queue
// closes only when the queue answers. Until then it uses little, but the number of such channels must stay small.
const channelCloseTimeout = 5 * time.Minute

// close closes the channel of a session that is given up, and waits for the broker's answer. When that takes too long,
// it closes the connection.
func (s *session) close() {
	s.writing.Lock()
	s.closing = true
	s.writing.Unlock()
	limit := time.AfterFunc(channelCloseTimeout, func() { _ = s.connection.Socket.Close() })
	defer limit.Stop()
	_ = s.channel.Close()
}

// closeAfter closes a retired session when it is given up, or when the last wait for one of its confirms has timed out.
func (s *session) closeAfter(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		s.giveUp()
	case <-s.givenUp:
	case <-s.closed:
		return
	}
	s.close()
}

// endReason is why the session was given up or closed, for the log.
func (s *session) endReason() error {
	select {
	case <-s.givenUp:
		return errGivenUp
	case <-s.closed:
		if s.reason != nil {
			return s.reason
		}
	}
	return wire.ErrLost
}
