package subscriber

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
)

var _ gate.Valve = (*subscription)(nil)

// Limit implements gate.Valve. At a pause it holds acks and nacks back at once: no ack after it brings another message.
func (s *subscription) Limit(n int) {
	s.limiting.Lock()
	defer s.limiting.Unlock()
	was := s.limit
	s.limit = n
	bound := s.boundOf(n)
	for _, p := range s.partitions {
		select {
		case p.changes <- struct{}{}:
		default:
		}
	}
	switch {
	case bound > 0:
		if was == 0 { // messages that were in flight at the pause count no more
			s.places.Set(0)
		}
		s.places.Set(bound)
	case s.givesBack:
		s.places.Set(0)
	}
	if state := s.session.Load(); bound == 0 && state.consumer != nil {
		state.session.settler.hold()
	}
	s.look()
}

// Taken implements gate.Valve. What a partition has fetched is not meant for a probe: its prefetch does not follow the
// limit.
func (s *subscription) Taken() int {
	if s.partitions != nil {
		return s.places.Taken()
	}
	return int(s.receiver.backlog.Load()) + s.places.Taken()
}

// look makes run look at the limit, at the messages that are set aside, and at the receiver's line.
func (s *subscription) look() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// limited returns how many calls there may be, and whether a pause gives back what was fetched.
func (s *subscription) limited() (bound int, givesBack bool) {
	s.limiting.Lock()
	defer s.limiting.Unlock()
	return s.boundOf(s.limit), s.givesBack
}

// boundOf is how many calls there may be under a limit.
func (s *subscription) boundOf(limit int) int {
	if limit < 0 {
		return s.config.Concurrency
	}
	return min(limit, s.config.Concurrency)
}

// fetch returns the bound and the prefetch of a consumer that begins. Under a limit the prefetch is the limit: the
// messages that wait would otherwise be kept from other consumers, and counted when they go back.
//
// A quorum queue puts messages that go back behind those that went back before and are still in the queue. So messages
// with keys go back only from a consumer with the whole Prefetch, which has fetched all of these. Those of another one
// are handed out during the pause.
func (s *subscription) fetch() (bound, prefetch int) {
	s.limiting.Lock()
	defer s.limiting.Unlock()
	bound = s.boundOf(s.limit)
	switch {
	case bound == s.config.Concurrency:
		s.givesBack = true
		return bound, s.config.Prefetch
	case bound > 0:
		s.givesBack = s.config.OrderKey == nil
	}
	return bound, bound
}

// apply makes a session follow the limit. It does not wait longer than answerTimeout when the subscription stops.
func (s *subscription) apply(n *session) error {
	was := s.session.Load().consumer
	followed := make(chan error, 1)
	go func() { followed <- s.follow(n) }()
	select {
	case err := <-followed:
		if err != nil {
			return err
		}
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
	c := n.consumer.Load()
	if c == was {
		return nil
	}
	s.setState(n)
	switch bound, _ := s.limited(); {
	case c != nil && n.before != nil && n.before.bound == c.bound && s.asideOf(n.before) > 0:
		s.logger.Info("Consuming beside messages that are set aside",
			watermill.LogFields{"set_aside": s.asideOf(n.before)})
	case c != nil:
		s.logger.Info("Consuming with another limit", watermill.LogFields{"calls_at_most": c.bound})
	case bound == 0:
		s.logger.Info("Paused: the consumer is cancelled, and messages stay in the queue",
			watermill.LogFields{"in_flight": s.inFlight.Load()})
	}
	return nil
}

// asideOf is how many messages were set aside since a consumer has begun.
func (s *subscription) asideOf(c *consumer) int { return s.places.Aside() - c.aside }

// usedUp reports whether messages that are set aside leave half of the bound or less of the prefetch to others.
func (s *subscription) usedUp(c *consumer) bool { return 2*(c.prefetch-s.asideOf(c)) <= c.bound }

// returnTime is how long a quorum queue takes to take back what a pause has given back. A consumer that begins before
// would get messages that are behind those.
const returnTime = 200 * time.Millisecond

// follow makes the consumer follow the limit, on the same channel, where messages in flight are acked. After each step
// it looks at the limit again. It returns when there is nothing to do before a call of look.
func (s *subscription) follow(n *session) error {
	for !s.stopped() && !n.lost() {
		bound, givesBack := s.limited()
		c := n.consumer.Load()
		switch {
		case c != nil && c.bound == bound && !s.usedUp(c): // also a pause that was ended at once
			n.settler.release()
			return nil
		case c != nil:
			s.end(n, c)
		case bound == 0:
			if givesBack && s.giveBack(n) > 0 {
				n.settler.sync()
				n.returned = time.Now()
			}
			return nil
		case s.receiver.ready.Load(): // they were fetched before those that a consumer fetches
			return nil
		case time.Since(n.returned) < returnTime:
			s.sleep(n, returnTime-time.Since(n.returned))
		default:
			if err := n.consume(s); err != nil {
				return err
			}
			s.receive(n)
		}
	}
	return nil
}

func (s *subscription) sleep(n *session, d time.Duration) {
	select {
	case <-time.After(d):
	case <-n.closed:
	case <-s.stopping:
	}
}

// end ends a consumer, and waits until the receiver has what it has fetched. A consumer that is cancelled while
// messages are on their way to it makes a quorum queue put them back before those that arrived. So acks are held back
// until the broker has sent all that it may send.
func (s *subscription) end(n *session, c *consumer) {
	n.unconsumed = time.Now()
	n.settler.hold()
	n.settler.sync()
	n.fill(s.queue, c)
	n.cancel(channelCloseTimeout)
	s.received(c)
	n.before = c
	n.consumer.Store(nil)
	n.settler.consumerEnded()
	n.settler.sync()
}

// received waits until the receiver has got the last delivery of a consumer that has ended, or until givenUp is closed.
func (s *subscription) received(c *consumer) {
	select {
	case <-c.ended:
	case <-c.session.settler.over:
	case <-s.givenUp:
	case <-s.receiver.over:
	}
}

// giveBack makes the receiver give back its backlog of a session, and returns how many messages went back.
func (s *subscription) giveBack(n *session) int {
	count := make(chan int, 1)
	if !s.receiver.ask(func() { count <- s.receiver.giveBack(n) }) {
		return 0
	}
	return <-count
}

// quiet is how long a change of the limit waits for a further delivery where the queue may be empty.
const quiet = 200 * time.Millisecond

// fillTimeout is how long a change of the limit waits for deliveries in all. A queue may send none although it has
// some: to a consumer with a lower priority, or to one that waits for the single active consumer.
const fillTimeout = 5 * time.Second

// fill waits until the broker has sent as many messages as the prefetch allows, or has sent none for a moment and has
// none in the queue. Nothing is on its way then. While acks are held back, no more follow.
func (n *session) fill(queue string, c *consumer) {
	begin := time.Now()
	silence := time.NewTimer(quiet)
	defer silence.Stop()
	sentAll := false // what it had sent then may still be on its way
	for n.arrived.Load()-c.first < uint64(c.prefetch)+n.settler.settled.Load() {
		select {
		case <-n.arrival:
			sentAll = false
			silence.Reset(quiet)
		case <-silence.C:
			if sentAll || n.arrived.Load() == c.first || time.Since(begin) > fillTimeout {
				return
			}
			sentAll = n.sentAll(queue)
			silence.Reset(quiet)
		case <-c.ended:
			return
		case <-n.settler.over:
			return
		}
	}
}

// sentAll reports whether the queue has no message that it could send, or the broker does not answer. It asks on a
// channel of its own: the session's channel must be free to cancel the consumer. A quorum queue that is busy answers
// late, and then states zero messages whatever it has.
func (n *session) sentAll(queue string) bool {
	all := true
	answered := n.within(fillTimeout, func() {
		channel, err := n.connection.OpenChannel()
		if err != nil {
			return
		}
		asked := time.Now()
		state, err := channel.QueueDeclarePassive(queue, false, false, false, false, nil)
		all = err != nil || state.Messages == 0 && time.Since(asked) < quiet
		go channel.Close()
	})
	return !answered || all
}
