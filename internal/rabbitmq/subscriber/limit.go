package subscriber

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/users"
)

// An era begins when a subscription consumes after a pause, and ends when the next pause gives back what was not handed
// out. Its users are the workers that receive, and the deliveries that are neither handed out nor given back.
type era struct {
	users.Count
	over      chan struct{}
	unsettled atomic.Int64 // deliveries

	placing sync.Mutex // guards the following
	bound   int        // of the messages in flight
	taken   int
	freed   chan struct{} // closed when a place may be free; nil while no worker waits
}

func newEra() *era { return &era{over: make(chan struct{})} }

func (e *era) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

func (e *era) setBound(bound int) {
	e.placing.Lock()
	defer e.placing.Unlock()
	e.bound = bound
	e.wake()
}

// take waits for a place, and reports whether it has got one. The prefetch alone does not bound the messages in flight:
// it counts those of one consumer, and each change of the limit makes another one. Messages in flight from before a
// pause take no place: a handler that never ends would otherwise take that of the probe.
func (e *era) take(stopping <-chan struct{}) bool {
	for {
		freed := e.tryTake()
		if freed == nil {
			return true
		}
		select {
		case <-freed:
		case <-e.over:
			return false
		case <-stopping:
			return false
		}
	}
}

// tryTake returns nil if it has taken a place, else a channel that is closed when one may be free.
func (e *era) tryTake() <-chan struct{} {
	e.placing.Lock()
	defer e.placing.Unlock()
	if e.taken < e.bound {
		e.taken++
		return nil
	}
	if e.freed == nil {
		e.freed = make(chan struct{})
	}
	return e.freed
}

func (e *era) free() {
	e.placing.Lock()
	defer e.placing.Unlock()
	e.taken--
	e.wake()
}

func (e *era) wake() {
	if e.freed != nil {
		close(e.freed)
		e.freed = nil
	}
}

// setLimit is what Config.Limits gets. At a pause it holds messages and acks back at once: no ack after it brings
// another message.
func (s *subscription) setLimit(n int) {
	s.limit.Store(int64(max(n, -1)))
	if state := s.session.Load(); n == 0 && state.consumer != nil {
		state.session.settler.hold()
		if s.givesBack(state.consumer) && !s.changing.pause() {
			state.consumer.era.setBound(0)
		}
	}
	select {
	case s.limited <- struct{}{}:
	default:
	}
}

// taken is how many deliveries of the present era are not settled.
func (s *subscription) taken() int {
	if e := s.places.Load(); e != nil {
		return int(e.unsettled.Load())
	}
	return 0
}

// bound is how many messages may be in flight under the present limit.
func (s *subscription) bound() int {
	limit := int(s.limit.Load())
	if limit < 0 {
		return s.config.Concurrency
	}
	return min(limit, s.config.Concurrency)
}

// prefetch is how many messages the broker sends ahead of their acks. Under a limit it is the limit: the messages that
// wait would otherwise be kept from other consumers, and counted when they go back.
func (s *subscription) prefetch(bound int) int {
	if bound < s.config.Concurrency {
		return bound
	}
	return s.config.Prefetch
}

// apply makes a session follow the limit. It does not wait longer than answerTimeout when the subscription stops.
func (s *subscription) apply(n *session) error {
	if c := n.consumer.Load(); c == nil && s.bound() == 0 {
		return nil
	} else if c != nil && c.bound == s.bound() && !c.used() { // a pause that was ended at once, or nothing
		c.era.setBound(c.bound)
		n.settler.release()
		return nil
	}
	was := s.session.Load().consumer
	followed := make(chan error, 1)
	go func() { followed <- s.follow(n) }()
	var err error
	select {
	case err = <-followed:
	case <-s.stopping:
		patience := time.NewTimer(answerTimeout)
		defer patience.Stop()
		select {
		case <-followed:
		case <-patience.C:
			go n.close()
			n.settler.end()
		}
		return nil
	}
	if err != nil {
		return err
	}
	s.setState(n)
	if c := n.consumer.Load(); c != nil && was != nil && was.bound == c.bound {
		s.logger.Info("Consuming beside messages that are set aside",
			watermill.LogFields{"set_aside": was.aside.Load()})
	} else if c != nil {
		s.logger.Info("Consuming with another limit", watermill.LogFields{"in_flight_at_most": c.bound})
	} else {
		s.logger.Info("Paused: the consumer is cancelled, and messages stay in the queue",
			watermill.LogFields{"in_flight": s.inFlight.Load()})
	}
	return nil
}

// used reports whether messages that are set aside leave half of the bound or less of the prefetch to others.
func (c *consumer) used() bool { return 2*(c.prefetch-int(c.aside.Load())) <= c.bound }

// follow ends the consumer, and begins one with the new bound on the same channel, where messages in flight are acked.
//
// Two properties of quorum queues could change the order of the messages. A consumer that is cancelled while messages
// are on their way to it makes the broker put them back before those that arrived: follow holds acks back until the
// broker has sent all that it may send. And messages that go back while others that went back before are still in the
// queue come after these: so they go back only from a consumer that had the whole Prefetch. Of a consumer with a limit
// and an OrderKey, they are handed out instead.
func (s *subscription) follow(n *session) error {
	paused := s.changing.begin()
	defer s.changing.end()
	bound := s.bound()
	if old := n.consumer.Load(); old != nil {
		n.settler.hold()
		n.settler.sync()
		back := bound == 0 && s.givesBack(old)
		if back {
			s.endEra()
			select {
			case <-old.era.Idle():
			case <-n.closed:
			case <-s.stopping:
			}
		} else if bound > 0 {
			old.era.setBound(bound)
		}
		n.fill(s.queue, old, back)
		n.cancel(channelCloseTimeout)
		n.settler.cancelled()
		if back {
			n.drain()
		} else {
			select {
			case <-old.received:
			case <-paused:
				bound = 0
				s.endEra()
				select {
				case <-old.era.Idle():
				case <-n.closed:
				case <-s.stopping:
				}
				n.drain()
			case <-n.closed:
			case <-s.stopping:
			}
		}
		n.consumer.Store(nil)
		n.settler.consumerEnded()
		n.settler.sync()
	}
	if bound == 0 {
		s.era = nil
		return nil
	}
	if s.stopped() {
		return nil
	}
	return n.consume(s, bound)
}

// A change of the consumer waits until all deliveries of the old one are handed out, and that needs their places. A
// pause meanwhile must not take the places away: it makes the change give the deliveries back.
type change struct {
	mu     sync.Mutex
	paused chan struct{} // nil: there is no change
	closed bool
}

func (c *change) begin() (paused <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused, c.closed = make(chan struct{}), false
	return c.paused
}

func (c *change) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = nil
}

// pause reports whether there is a change.
func (c *change) pause() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused != nil && !c.closed {
		close(c.paused)
		c.closed = true
	}
	return c.paused != nil
}

// givesBack reports whether a pause gives back what the consumer has fetched.
func (s *subscription) givesBack(c *consumer) bool {
	return s.config.OrderKey == nil || c.bound == s.config.Concurrency
}

// endEra gives back what was not handed out.
func (s *subscription) endEra() {
	if s.era == nil {
		return
	}
	close(s.era.over)
	s.era.Close()
	s.era = nil
	s.feed.giveBack()
}

// presentEra is the era of a consumer that begins.
func (s *subscription) presentEra(bound int) *era {
	if s.era == nil {
		s.era = newEra()
		s.places.Store(s.era)
	}
	s.era.setBound(bound)
	return s.era
}

// quiet is how long a change of the limit waits for a further delivery where the queue may be empty.
const quiet = 200 * time.Millisecond

// fillTimeout is how long a change of the limit waits for deliveries in all. A queue may send none although it has
// some: to a consumer with a lower priority, or to one that waits for the single active consumer.
const fillTimeout = 5 * time.Second

// fill waits until the broker has sent as many messages as the prefetch allows, or has sent none for a moment and has
// none in the queue. Nothing is on its way then. While acks are held back, no more follow. Where back is true, workers
// do not receive any more, and the deliveries go back.
func (n *session) fill(queue string, c *consumer, back bool) {
	begin := time.Now()
	var deliveries <-chan amqp091.Delivery
	if back {
		deliveries = c.deliveries
	}
	n.filling.Store(true)
	defer n.filling.Store(false)
	silence := time.NewTimer(quiet)
	defer silence.Stop()
	sentAll := false // what it had sent then may still be on its way
	for n.arrived.Load()-c.before < uint64(c.prefetch)+n.settler.settled.Load() {
		select {
		case d, open := <-deliveries:
			if !open {
				return
			}
			n.arrived.Add(1)
			n.nack(d.DeliveryTag)
			sentAll = false
			silence.Reset(quiet)
		case <-n.arrival:
			sentAll = false
			silence.Reset(quiet)
		case <-silence.C:
			if sentAll || n.arrived.Load() == c.before || time.Since(begin) > fillTimeout {
				return
			}
			sentAll = n.sentAll(queue)
			silence.Reset(quiet)
		case <-n.settler.over:
			return
		}
	}
}

// sentAll reports whether the queue has no message that it could send, or the broker does not answer. It asks on a
// channel of its own: the session's channel must be free to cancel the consumer. A quorum queue that is busy answers
// late, and then states zero messages whatever it has.
func (n *session) sentAll(queue string) bool {
	answered := make(chan bool, 1)
	go func() {
		channel, err := n.connection.Channel(func(*amqp091.Channel) error { return nil })
		if err != nil {
			answered <- true
			return
		}
		asked := time.Now()
		state, err := channel.QueueDeclarePassive(queue, false, false, false, false, nil)
		answered <- err != nil || state.Messages == 0 && time.Since(asked) < quiet
		_ = channel.Close()
	}()
	patience := time.NewTimer(fillTimeout)
	defer patience.Stop()
	select {
	case all := <-answered:
		return all
	case <-n.settler.over:
	case <-patience.C:
	}
	return true
}

// count counts a delivery that a worker has received.
func (n *session) count() {
	n.arrived.Add(1)
	if n.filling.Load() {
		select {
		case n.arrival <- struct{}{}:
		default:
		}
	}
}
