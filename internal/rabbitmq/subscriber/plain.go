package subscriber

import "github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"

// plain is the kind of the loop of a work queue without an order. Its messages are given back one by one, and a session
// that ends lets those in flight go on, beside the next one.
type plain struct{ *loop }

func newPlain(s *subscription) *loop {
	l := newLoop(s, s.queue)
	l.kind, l.binds = plain{l}, true
	return l
}

func (p plain) begin(current *wire.Connection) (*session, error) {
	bound, prefetch := p.fetch()
	if bound == 0 {
		p.giveBack(nil) // what a session has left that ended for another limit
		return nil, nil
	}
	channel, err := current.OpenChannel()
	if err != nil {
		return nil, err
	}
	n := newSession(current, channel, p.loop)
	n.bound, n.aside = bound, p.places.Aside()
	moved := movesConsumers(current.Version()) && p.subscriber.handler.MayBeQuorum(p.queue)
	if err := n.begin(p.config.Consumer.tag(false), prefetch, p.config.Consumer, moved); err != nil {
		return nil, err
	}
	return n, nil
}

func (p plain) feed(n *session) { p.receiver.ask(func() { p.receiver.begin(n) }) }

// keep ends a session also when the limit changes, because its prefetch follows the limit.
func (p plain) keep(n *session) error {
	for {
		switch bound := p.places.Limit(); {
		case bound == 0:
			return nil
		case bound != n.bound: // not where a pause was ended at once
			return errLimit
		case p.usedUp(n):
			return errAside
		}
		select {
		case <-n.closed:
			return n.reason
		case reason := <-n.rewinds:
			return reason
		case <-p.stopping:
			return nil
		case <-p.changes:
		}
	}
}

// asideOf is how many messages were set aside since a session has begun.
func (s *subscription) asideOf(n *session) int { return s.places.Aside() - n.aside }

// usedUp reports whether messages that are set aside leave half of the bound or less of the prefetch to others.
func (s *subscription) usedUp(n *session) bool { return 2*(n.prefetch-s.asideOf(n)) <= n.bound }

// retire cancels the consumer. At a pause, and where the session is lost, it gives back what was not handed out. The
// channel is closed when the other messages are settled, or when givenUp is closed.
func (p plain) retire(n *session, reason error) {
	patience := channelCloseTimeout
	if !isPlanned(reason) {
		patience = answerTimeout
	}
	n.cancel(patience, p.stopping)
	p.received(n)
	switch reason {
	case errLimit, errAside: // the next session is not so far
	case nil:
		p.giveBack(nil)
	default:
		p.giveBack(n)
	}
	n.settler.consumerEnded()
	empty, lost := n.users.Close(), n.lost()
	end := func() {
		select {
		case <-empty:
		case <-p.givenUp:
		case <-p.receiver.over:
		case <-n.settler.over:
		}
		n.abandon()
		if !lost && n.lostChannel() {
			p.fail(n.reason)
			p.logger.Error("The channel of messages in flight has ended: the broker delivers them again", n.reason,
				p.fields)
		}
	}
	select {
	case <-empty: // what went back is in the queue before the next consumer
		end()
	default:
		p.retiring.Go(end)
	}
}

// received waits until the receiver has got the last delivery of a session whose consumer has ended, or until givenUp
// is closed.
func (s *subscription) received(n *session) {
	select {
	case <-n.ended:
	case <-n.settler.over:
	case <-s.givenUp:
	case <-s.receiver.over:
	}
}

// giveBack makes the receiver give back its backlog of a session, and waits until it has. Nil: of all.
func (s *subscription) giveBack(n *session) {
	done := make(chan struct{})
	if s.receiver.ask(func() { s.receiver.giveBack(n); close(done) }) {
		<-done
	}
}
