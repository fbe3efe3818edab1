package subscriber

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/binding"
)

// errExited is the error of a message with which a function of the app has called runtime.Goexit. No function can stop
// that, so another goroutine goes on.
var errExited = errors.New("a function of the app ended the goroutine")

// work handles messages, one at a time, until the subscription stops. A message that is set aside is its last one:
// another worker goes on.
func (s *subscription) work() {
	var a arrival
	aside := make(chan struct{}, 1)
	finished := false
	defer func() {
		if !finished {
			s.workers.Go(func() {
				a.err = errExited
				s.handle(&a, nil)
				s.feed.handled(&a)
				if !a.aside {
					s.work()
				}
			})
		}
	}()
	for !a.aside && s.feed.next(&a) {
		s.handle(&a, aside)
		s.feed.handled(&a)
	}
	finished = true
}

// handle hands a message out, and settles its delivery when the handler has acked or nacked it. aside receives when the
// message is to be set aside.
func (s *subscription) handle(a *arrival, aside chan struct{}) {
	if a.session.lost() {
		a.leave()
		return // the broker delivers it again
	}
	if a.msg == nil && a.err == nil {
		s.unmarshal(a)
	}
	if a.err != nil {
		s.logger.Error("Cannot unmarshal a message", a.err, watermill.LogFields{"delivery": describe(a)})
		a.leave()
		s.requeue(a)
		return
	}
	ctx, end := context.WithCancel(s.contextOf(a))
	defer end()
	select {
	case <-aside: // of a message that was settled at that moment
	default:
	}
	binding.Offer(ctx, aside)
	a.msg.SetContext(ctx)
	placed := a.era.take(s.stopping)
	if placed {
		defer func() {
			if !a.aside {
				a.era.free()
			}
		}()
	}
	if !placed || !s.handOut(a) {
		a.session.nack(a.delivery.DeliveryTag)
		a.leave()
		return
	}
	a.leave()
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
wait:
	for {
		select {
		case <-a.msg.Acked():
			s.acked(a)
			return
		case <-a.msg.Nacked():
			end()
			s.nacked(a)
			return
		case <-aside:
			s.setAside(a)
		case <-s.expired:
			end()
			break wait
		}
	}
	select {
	case <-a.msg.Acked():
		s.acked(a)
	case <-a.msg.Nacked():
		s.nacked(a)
	case <-s.givenUp:
		s.logger.Error("Gave up a message: it was neither acked nor nacked before the close timeout", errNotSettled,
			watermill.LogFields{"message_uuid": a.msg.UUID})
	}
}

// setAside makes a message take no place: neither of the handlers, nor of the workers, nor, once the consumer is
// followed by another one, of the prefetch.
func (s *subscription) setAside(a *arrival) {
	a.aside = true
	a.era.unsettled.Add(-1)
	a.era.free()
	s.workers.Go(s.work)
	if c := a.session.consumer.Load(); c != nil {
		c.aside.Add(1)
		select {
		case s.limited <- struct{}{}:
		default:
		}
	}
}

var errNotSettled = errors.New("the broker delivers the message again")

// handOut reports whether a receiver has taken the message.
func (s *subscription) handOut(a *arrival) bool {
	s.handing.RLock()
	defer s.handing.RUnlock()
	if s.closed || s.stopped() || a.era.isOver() {
		return false
	}
	select {
	case s.out <- a.msg:
		return true
	case <-s.stopping:
		return false
	case <-a.era.over:
		return false
	}
}

func (s *subscription) acked(a *arrival) {
	if a.delivery.Redelivered {
		s.nacks.forget(a)
	}
	if !a.session.ack(a.delivery.DeliveryTag) {
		s.logger.Debug("A message was acked after its channel was closed: the broker delivers it again",
			watermill.LogFields{"message_uuid": a.msg.UUID})
	}
}

func (s *subscription) nacked(a *arrival) {
	if s.config.Nacked != nil {
		done := false
		err := guard("Config.Nacked", func() error {
			done = s.config.Nacked(a.msg, func() (*message.Message, error) { return s.again(a) })
			return nil
		})
		if err != nil {
			s.logger.Error("Config.Nacked failed", err, watermill.LogFields{"message_uuid": a.msg.UUID})
		}
		if done {
			s.acked(a)
			return
		}
	}
	s.requeue(a)
}

// again unmarshals a delivery once more.
func (s *subscription) again(a *arrival) (*message.Message, error) {
	second := arrival{session: a.session, delivery: a.delivery}
	s.unmarshal(&second)
	return second.msg, second.err
}

// requeue nacks a delivery after a pause, which grows each time that the message is delivered. The stop of the
// subscription ends the pause.
func (s *subscription) requeue(a *arrival) {
	pause := time.NewTimer(pauseOf(s.nacks.count(a), s.config.NackInitial, s.config.NackMax))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-s.stopping:
	case <-a.session.closed:
	}
	a.session.nack(a.delivery.DeliveryTag)
}

func (s *subscription) unmarshal(a *arrival) {
	a.err = guard("Config.Unmarshal", func() (err error) {
		a.msg, err = s.config.Unmarshal(a.delivery)
		return err
	})
	switch {
	case a.err != nil:
		a.msg = nil
	case a.msg == nil:
		a.err = errors.New("Config.Unmarshal returned neither a message nor an error")
	case a.msg.Acked() == nil: // made without message.NewMessage: its ack cannot be waited for
		msg := message.NewMessage(a.msg.UUID, a.msg.Payload)
		if a.msg.Metadata != nil {
			msg.Metadata = a.msg.Metadata
		}
		a.msg = msg
	}
}

func (s *subscription) contextOf(a *arrival) context.Context {
	if s.config.Context == nil {
		return s.values
	}
	ctx := s.values
	err := guard("Config.Context", func() error {
		if made := s.config.Context(s.values, a.delivery, s.topic); made != nil {
			ctx = made
		}
		return nil
	})
	if err != nil {
		s.logger.Error("A message has no context of its own", err, watermill.LogFields{"message_uuid": a.msg.UUID})
	}
	return ctx
}
