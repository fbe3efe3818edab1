package subscriber

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
)

// await waits until the handler has acked or nacked a message, and settles its delivery.
func (s *subscription) await(a *arrival) {
	defer s.workers.Done()
	finished := false
	defer func() {
		if !finished { // a function of the app has ended the goroutine
			s.workers.Go(func() {
				a.err = errExited
				s.inFlight.Add(-1)
				s.refuse(a)
			})
		}
	}()
	s.settle(a)
	s.inFlight.Add(-1)
	if again := a.again; again != nil {
		a.again = nil
		s.retain(a, again)
	} else {
		s.handled(a)
	}
	finished = true
}

func (s *subscription) settle(a *arrival) {
	select {
	case <-a.msg.Acked():
		s.acked(a)
		return
	case <-a.msg.Nacked():
		a.end(errSettled)
		s.nacked(a)
		return
	case <-s.expired:
		a.end(errExpired)
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

var errNotSettled = errors.New("the broker delivers the message again")

// Why the context of a message ends. Some middlewares return it in place of the handler's error.
var (
	errSettled = fmt.Errorf("%w: the message was acknowledged or given back", context.Canceled)
	errExpired = fmt.Errorf("%w: the close timeout is over", context.Canceled)
)

// refuse nacks a message that has no handler.
func (s *subscription) refuse(a *arrival) {
	s.logger.Error("Cannot unmarshal a message", a.err, watermill.LogFields{"delivery": describe(a)})
	s.requeue(a)
	s.handled(a)
}

// handled ends the part of an arrival that was handed out or refused. It is not used any more.
func (s *subscription) handled(a *arrival) {
	if a.kept != nil {
		s.receiver.forget(a)
	}
	s.settled(a)
	if a.key.of != "" {
		s.receiver.keys <- a.key
	}
	*a = arrival{}
	arrivals.Put(a)
}

// settled is called when the delivery was acked, nacked or lost.
func (s *subscription) settled(a *arrival) {
	if a.end != nil {
		a.end(errSettled)
	}
	a.place.Leave()
	a.session.users.Leave()
}

func (s *subscription) acked(a *arrival) {
	if a.of != nil && a.of.Again != nil {
		a.again = a.of.Again
		return
	}
	if a.delivery.Redelivered {
		s.nacks.forget(a)
	}
	if a.acked = a.session.ack(a.delivery.DeliveryTag); !a.acked {
		if a.of != nil && errors.Is(context.Cause(a.of), msgctx.ErrOutlived) {
			s.outlive(a, msgctx.ErrOutlived)
		}
		s.logger.Debug("A message was acked after its channel was closed: the broker delivers it again",
			watermill.LogFields{"message_uuid": a.msg.UUID})
	}
}

func (s *subscription) nacked(a *arrival) {
	if a.of != nil && a.of.Outlived != nil {
		s.outlive(a, a.of.Outlived)
	}
	done := false
	err := panics.Error("Nacked", func() error { done = s.subscriber.handler.Nacked(a.msg, a.delivery); return nil })
	if err != nil {
		s.logger.Error("A function of the app failed", err, watermill.LogFields{"message_uuid": a.msg.UUID})
	}
	if done {
		s.acked(a)
		return
	}
	s.requeue(a)
}

// requeue nacks a delivery after a pause, which grows each time that the message is delivered. The stop of the
// subscription ends the pause.
func (s *subscription) requeue(a *arrival) {
	if a.session.lost() { // the broker has given it out again
		return
	}
	pause := time.NewTimer(pauseOf(s.nacks.count(a), s.config.NackInitial, s.config.NackMax))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-s.stopping:
	case <-a.session.settler.over:
	case <-a.session.leaving:
	}
	a.session.nack(a.delivery.DeliveryTag)
}

// move moves a message of the intake to its partition.
func (s *subscription) move(a *arrival) {
	err := panics.Error("Route", func() error { return a.session.move(a.msg.Context(), s.topic, a) })
	switch {
	case err == nil:
		s.acked(a)
	case a.session.gone(): // for a reason that is logged once, for all of its messages
		s.requeue(a)
	default:
		s.logger.Error("A message cannot be moved to its partition: it goes back, with those behind it", err,
			watermill.LogFields{"message_uuid": a.msg.UUID})
		s.requeue(a)
	}
	s.handled(a)
}

func (s *subscription) unmarshal(a *arrival) {
	a.err = panics.Error("Unmarshal", func() (err error) {
		a.msg, err = s.subscriber.handler.Unmarshal(a.delivery)
		return err
	})
	if a.err != nil {
		a.msg = nil
	}
}
