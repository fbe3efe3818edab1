package subscriber

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
)

var _ gate.Valve = (*subscription)(nil)

// Limit implements gate.Valve.
func (s *subscription) Limit(n int) {
	s.limiting.Lock()
	defer s.limiting.Unlock()
	was := s.limit
	s.limit = n
	for _, p := range s.partitions {
		select {
		case p.changes <- struct{}{}:
		default:
		}
	}
	if was == 0 { // messages that were in flight at the pause count no more
		s.places.Set(0)
	}
	s.places.Set(s.boundOf(n))
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

// limited returns how many calls there may be.
func (s *subscription) limited() int {
	s.limiting.Lock()
	defer s.limiting.Unlock()
	return s.boundOf(s.limit)
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
func (s *subscription) fetch() (bound, prefetch int) {
	if bound = s.limited(); bound == s.config.Concurrency {
		return bound, s.config.Prefetch
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
	switch {
	case c != nil && n.before != nil && n.before.bound == c.bound && s.asideOf(n.before) > 0:
		s.logger.Info("Consuming beside messages that are set aside",
			watermill.LogFields{"set_aside": s.asideOf(n.before)})
	case c != nil:
		s.logger.Info("Consuming with another limit", watermill.LogFields{"calls_at_most": c.bound})
	case s.limited() == 0:
		s.logger.Info("Paused: the consumer is cancelled, and messages stay in the queue",
			watermill.LogFields{"in_flight": s.inFlight.Load()})
	}
	return nil
}

// asideOf is how many messages were set aside since a consumer has begun.
func (s *subscription) asideOf(c *consumer) int { return s.places.Aside() - c.aside }

// usedUp reports whether messages that are set aside leave half of the bound or less of the prefetch to others.
func (s *subscription) usedUp(c *consumer) bool { return 2*(c.prefetch-s.asideOf(c)) <= c.bound }

// follow makes the consumer follow the limit, on the same channel, where messages in flight are acked. After each step
// it looks at the limit again. It returns when there is nothing to do before a call of look.
func (s *subscription) follow(n *session) error {
	for !s.stopped() && !n.lost() {
		bound, c := s.limited(), n.consumer.Load()
		switch {
		case c != nil && c.bound == bound && !s.usedUp(c): // also a pause that was ended at once
			return nil
		case c != nil:
			s.end(n, c)
		case bound == 0:
			s.giveBack(n)
			return nil
		case s.receiver.ready.Load(): // they were fetched before those that a consumer fetches
			return nil
		default:
			if err := n.consume(s); err != nil {
				return err
			}
			s.receive(n)
		}
	}
	return nil
}

// end ends a consumer, and waits until the receiver has what it has fetched.
func (s *subscription) end(n *session, c *consumer) {
	n.unconsumed = time.Now()
	n.cancel(channelCloseTimeout)
	s.received(c)
	n.before = c
	n.consumer.Store(nil)
	n.settler.consumerEnded()
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

// giveBack makes the receiver give back its backlog of a session, and waits until it has.
func (s *subscription) giveBack(n *session) {
	done := make(chan struct{})
	if s.receiver.ask(func() { s.receiver.giveBack(n); close(done) }) {
		<-done
	}
}
