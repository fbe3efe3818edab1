package publisher

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A session is one life of a confirm channel.
type session struct {
	connection  *connection
	channel     *amqp091.Channel
	maxInFlight int
	closes      chan *amqp091.Error
	gone        chan struct{}  // closed when the channel is
	reason      *amqp091.Error // set before gone is closed; nil: closed by us

	writing sync.Mutex    // held while a message is written: on an ended channel, it would cost the connection
	ended   bool          // guarded by writing: channel.close is on its way
	givenUp chan struct{} // closed when nothing is written any more, and nothing waited for
	once    sync.Once     // closes givenUp

	opened  time.Time
	retired chan struct{} // closed when another session is to take new messages
	retire  sync.Once     // closes retired

	abandoned atomic.Int64 // messages whose callers have left before the confirm

	returns  chan amqp091.Return // never full: no more messages are in flight than it holds
	mu       sync.Mutex
	returned map[string]amqp091.Return // by id, not claimed yet
}

func newSession(c *connection, channel *amqp091.Channel, maxInFlight int) *session {
	return &session{
		connection:  c,
		channel:     channel,
		maxInFlight: maxInFlight,
		closes:      channel.NotifyClose(make(chan *amqp091.Error, 1)),
		gone:        make(chan struct{}),
		givenUp:     make(chan struct{}),
		opened:      time.Now(),
		retired:     make(chan struct{}),
		returns:     channel.NotifyReturn(make(chan amqp091.Return, maxInFlight)),
		returned:    make(map[string]amqp091.Return),
	}
}

// watchClosed closes s.gone when the channel is closed.
func (s *session) watchClosed() {
	s.reason = <-s.closes
	close(s.gone)
}

// goodbyeTimeout is how long the broker may take to close a channel. A channel that waits for a quorum queue closes when the
// queue answers, and harms nobody until then; but such channels must not pile up.
const goodbyeTimeout = 5 * time.Minute

// giveUp takes the session out of use. Whoever calls it has to see to it that end is called.
func (s *session) giveUp() { s.once.Do(func() { close(s.givenUp) }) }

// refusedFor is how old a channel has to be for another one to replace it when the broker nacks: on RabbitMQ 3.10, a channel
// whose publish was refused by a quorum queue that was full goes on being refused when there is room again.
const refusedFor = 10 * time.Second

func (s *session) nacked() {
	if time.Since(s.opened) > refusedFor {
		s.retire.Do(func() { close(s.retired) })
	}
}

// outlive ends a retired session when nobody waits for its confirms any more.
func (s *session) outlive(longest time.Duration) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-timer.C:
		s.giveUp()
		s.end()
	case <-s.gone:
	}
}

// end closes the channel of a session that was given up. Nobody waits for it: the broker's answer may take its time.
func (s *session) end() {
	s.writing.Lock()
	s.ended = true
	s.writing.Unlock()
	limit := time.AfterFunc(goodbyeTimeout, func() { _ = s.connection.socket.Close() })
	defer limit.Stop()
	_ = s.channel.Close()
}

// why is the reason of a session's end, for the log.
func (s *session) why() error {
	select {
	case <-s.givenUp:
		return errAbandoned
	case <-s.gone:
		if s.reason != nil {
			return s.reason
		}
	}
	return errGone
}

var errAbandoned = errors.New("too many messages were never confirmed, the channel is given up")

// over says that the session takes no more messages.
func (s *session) over() bool {
	select {
	case <-s.givenUp:
		return true
	default:
		return s.channel.IsClosed()
	}
}

// put writes a message. amqp091.ErrClosed: the session is over, nothing was written.
func (s *session) put(exchange string, r *request) (*amqp091.DeferredConfirmation, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.ended {
		return nil, amqp091.ErrClosed
	}
	return s.channel.PublishWithDeferredConfirm(exchange, r.routingKey, true, false, r.publishing)
}

// abandon holds on to a message whose caller has left, until there is a confirm or the session is given up.
func (s *session) abandon(r *request) {
	s.abandoned.Add(1)
	s.relieve()
	select {
	case <-r.confirm.Done():
		s.claim(r.id)
	case <-s.givenUp:
	}
	s.abandoned.Add(-1)
}

// relieve gives the session up when abandoned messages hold more than half of all slots, as they do when a queue never
// confirms. Not while the broker blocks the connection: then it reads nothing, and would not open another channel either.
func (s *session) relieve() {
	if 2*s.abandoned.Load() > int64(s.maxInFlight) && !s.connection.blocked.Load() {
		s.giveUp()
	}
}

// claim finds out whether the broker returned the publish with this id. To be called after its confirm: the return is
// on the wire first, so it is in returns by then, or another caller has taken it from there under the lock.
func (s *session) claim(id string) (amqp091.Return, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for more := true; more; {
		select {
		case r, open := <-s.returns:
			if more = open; open {
				theirs, _ := r.Headers[IDHeader].(string)
				s.returned[theirs] = r
			}
		default:
			more = false
		}
	}
	r, found := s.returned[id]
	delete(s.returned, id)
	return r, found
}
