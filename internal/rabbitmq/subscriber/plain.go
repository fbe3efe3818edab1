package subscriber

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// plain is the loop of a work queue. Its messages are given back one by one, and a session that ends lets those in
// flight go on, beside the next one.
type plain struct {
	*Loop
	keyOf func(*message.Message) string // nil: there are no keys
	keys  dispatch.Keys
}

func newPlain(s *Subscription) *plain {
	p := &plain{keys: dispatch.Keys{}}
	if p.Loop = s.NewLoop(s.Queue, p, true, nil); s.Config.Concurrency > 1 {
		p.keyOf = s.Config.OrderKey
	}
	return p
}

// A session is one consumer of a plain loop.
type session struct {
	*channel.Session
	of    *plain
	bound int // the number of the calls
	aside int // messages that were set aside before it
}

// Begin implements Kind.
func (p *plain) Begin(current *wire.Connection) (Session, error) {
	bound, prefetch := p.fetch()
	if bound == 0 {
		p.Rest()
		return nil, nil
	}
	open, err := current.OpenChannel()
	if err != nil {
		return nil, err
	}
	return p.on(current, open, bound, prefetch)
}

func (p *plain) on(current *wire.Connection, open channel.AMQP, bound, prefetch int) (n *session, err error) {
	n = &session{of: p, bound: bound, aside: p.Places.Aside()}
	moves := channel.MovesConsumers(current.Version()) && p.subscriber.handler.MayBeQuorum(p.Queue)
	n.Session, err = p.Open(current, open, prefetch, false, moves)
	return n, err
}

// Feed implements Session.
func (n *session) Feed() { n.of.Do(func() { n.of.Receive(n.Deliveries, n.receive) }) }

// receive is called for each delivery.
func (n *session) receive(delivery amqp091.Delivery) {
	if n.Gone().Err() != nil || n.of.stopped() || !n.Users.Enter() {
		n.Nack(delivery.DeliveryTag)
		return
	}
	n.of.Arrive(n, delivery, n.of.keyOf, n.add)
}

func (n *session) add(a *dispatch.Arrival) {
	n.of.Prepare(a, n.of.Values, n.Lost)
	if n.of.keys.Add(a) {
		n.of.Add(a)
	}
}

// GiveBack implements dispatch.Source.
func (n *session) GiveBack(a *dispatch.Arrival) {
	n.Nack(a.Delivery.DeliveryTag)
	n.leave(a)
	settled(a)
}

// Settle implements dispatch.Source.
func (n *session) Settle(a *dispatch.Arrival, acked bool) {
	if acked {
		n.of.Ack(n.Session, a)
	} else {
		n.Nack(a.Delivery.DeliveryTag)
	}
	n.leave(a)
	if a.Key == "" {
		a.Free()
	} else {
		n.of.Tell(settled, a)
	}
}

func (n *session) leave(a *dispatch.Arrival) {
	n.of.Leave(a)
	n.Users.Leave()
}

// settled lets the next message of a key follow.
func settled(a *dispatch.Arrival) {
	p := a.Source.(*session).of
	if next := p.keys.Release(a); next != nil {
		p.Add(next)
	}
	a.Free()
}

// Keep implements Session. A session also ends when the limit changes, because its prefetch follows the limit.
func (n *session) Keep() error {
	for {
		switch bound := n.of.Places.Limit(); {
		case bound == 0:
			return nil
		case bound != n.bound: // not where a pause was ended at once
			return errLimit
		case n.usedUp():
			return errAside
		}
		select {
		case <-n.Gone().Done():
			return n.Reason()
		case <-n.of.Stopping.Done():
			return nil
		case <-n.of.Changes:
		case <-n.of.Places.SetsAside():
		}
	}
}

// asides is how many messages were set aside since the session has begun.
func (n *session) asides() int { return n.of.Places.Aside() - n.aside }

// usedUp reports whether messages that are set aside leave half of the bound or less of the prefetch to others.
func (n *session) usedUp() bool { return 2*(n.Prefetch-n.asides()) <= n.bound }

// Retire implements Session. It cancels the consumer. At a pause, and where the session is lost, it gives back what was
// not handed out. The channel is closed when the other messages are settled, or when they are given up.
func (n *session) Retire(reason error) {
	patience := channel.CloseTimeout
	if !IsPlanned(reason) {
		patience = channel.AnswerTimeout
	}
	n.Cancel(patience)
	n.of.Do(func() { n.rest(reason) })
	n.ConsumerEnded()
	empty, lost := n.Users.Close(), n.Lost.Err() != nil
	end := func() {
		select {
		case <-empty:
		case <-n.of.GivenUp.Done():
		case <-n.Lost.Done():
		}
		n.Abandon()
		if !lost && n.LostChannel() {
			n.of.fail(n.Reason())
			n.of.Logger.Error("The channel of messages in flight has ended: the broker delivers them again", n.Reason(), nil)
		}
	}
	select {
	case <-empty: // what went back is in the queue before the next consumer
		end()
	default:
		n.of.retiring.Go(end)
	}
}

// rest gives back what was not handed out, also of sessions before where there is a pause, and receives what amqp091-go
// still has of a consumer that has ended. The next session is not so far where only the limit has changed.
func (n *session) rest(reason error) {
	keep := reason == errLimit || reason == errAside
	if reason == nil {
		n.of.GiveBack(nil, n.of.keys)
	} else if !keep {
		n.of.GiveBack(n, n.of.keys)
	}
	exited := true
	defer func() {
		if exited { // a function of the app has ended the goroutine
			n.rest(reason)
		}
	}()
	for n.Lost.Err() == nil {
		delivery, open := <-n.Deliveries
		if !open {
			break
		}
		if keep {
			n.receive(delivery)
		} else {
			n.Nack(delivery.DeliveryTag)
		}
	}
	exited = false
}

// Rest implements Kind. It gives back what sessions have left that have ended for another limit.
func (p *plain) Rest() { p.Do(func() { p.GiveBack(nil, p.keys) }) }

// AddTo implements Kind.
func (p *plain) AddTo(*retry.SubscriptionHealth) {}
