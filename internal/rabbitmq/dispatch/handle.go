package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// await waits until the handler has acked or nacked a message, and settles its delivery.
func (d *Dispatcher) await(a *Arrival) {
	defer d.Workers.Done()
	finished := false
	defer func() {
		if !finished { // a function of the app has ended the goroutine
			d.Workers.Go(func() {
				a.Err = ErrExited
				d.InFlight.Add(-1)
				d.refuse(a)
			})
		}
	}()
	acked, ended := d.ended(a)
	if ended && !acked {
		if acked = d.handled(a); !acked {
			d.Pause(a)
		}
	}
	d.InFlight.Add(-1)
	finished = true
	if ended {
		a.Source.Settle(a, acked)
	}
}

// ended waits for the ack or nack of a message, and reports whether there is one before the message is given up.
func (d *Dispatcher) ended(a *Arrival) (acked, ended bool) {
	select {
	case <-a.Msg.Acked():
		return true, true
	case <-a.Msg.Nacked():
		a.end(errSettled)
		return false, true
	case <-d.Expired:
		a.end(errExpired)
	}
	select {
	case <-a.Msg.Acked():
		return true, true
	case <-a.Msg.Nacked():
		return false, true
	case <-d.GivenUp.Done():
		d.Logger.Error("Gave up a message: it was neither acked nor nacked before the close timeout", ErrNotSettled,
			watermill.LogFields{"message_uuid": a.Msg.UUID})
		return false, false
	}
}

// ErrNotSettled is that of a message that is given up.
var ErrNotSettled = errors.New("the broker delivers the message again")

// Why the context of a message ends. Some middlewares return it in place of the handler's error.
var (
	errSettled = fmt.Errorf("%w: the message was acknowledged or given back", context.Canceled)
	errExpired = fmt.Errorf("%w: the close timeout is over", context.Canceled)
)

// refuse nacks a message that has no handler.
func (d *Dispatcher) refuse(a *Arrival) {
	of := a.Delivery
	d.Logger.Error("Cannot unmarshal a message", a.Err, watermill.LogFields{"delivery": fmt.Sprintf(
		"message id %q, exchange %q, routing key %q, %d bytes", of.MessageId, of.Exchange, of.RoutingKey, len(of.Body))})
	d.Pause(a)
	a.Source.Settle(a, false)
}

// handled reports whether the app has taken care of a message that was nacked.
func (d *Dispatcher) handled(a *Arrival) (done bool) {
	err := panics.Error("Nacked", func() error { done = d.Handler.Nacked(a.Msg, a.Delivery); return nil })
	if err != nil {
		d.Logger.Error("A function of the app failed", err, watermill.LogFields{"message_uuid": a.Msg.UUID})
	}
	return done
}

// Pause waits before a message goes back, longer each time that it is delivered. The stop of the subscription, and the
// end of the source, end the pause.
func (d *Dispatcher) Pause(a *Arrival) {
	if a.lost.Err() != nil { // the broker has given it out again
		return
	}
	pause := time.NewTimer(pauses.Doubled(shortestNack, d.nacks.count(a), d.LongestNack))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-d.Stopping.Done():
	case <-a.Source.Gone().Done():
	}
}

// Forget ends the count of the nacks of a message that was acked.
func (d *Dispatcher) Forget(a *Arrival) {
	if a.Delivery.Redelivered {
		d.nacks.forget(a)
	}
}

// Identify returns the same number for each delivery of a message, if it can be told from others by its UUID or its
// content.
func (d *Dispatcher) Identify(a *Arrival) uint64 { return d.nacks.identify(a) }
