package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
)

// ErrExited is the error of a message with which a function of the app has called runtime.Goexit. No function can stop
// that, so another goroutine goes on.
var ErrExited = errors.New("a function of the app ended the goroutine")

// A Handler is for whom messages are handed out.
type Handler interface {
	// Unmarshal converts a delivery to a message of message.NewMessage. When it returns an error, the error is logged
	// and the delivery is nacked after a pause. One goroutine for each Subscribe call unmarshals its
	// messages.
	Unmarshal(delivery amqp091.Delivery) (*message.Message, error)

	// Nacked is called when a message was nacked, before the pause. The message may have been changed by its handler;
	// the delivery has it as it was. If Nacked returns true, the message is acked, because Nacked has taken care of it.
	// It may block: the message takes one place of Prefetch meanwhile, and one of Concurrency where its call has not
	// ended.
	Nacked(msg *message.Message, delivery amqp091.Delivery) bool
}

// Config is what a Dispatcher needs.
type Config struct {
	Handler     Handler
	Logger      watermill.LoggerAdapter
	Places      *gate.Places  // the places of calls, and of messages in flight
	LongestNack time.Duration // the bound of the pause before a message goes back
}

// A Dispatcher is the goroutine of a subscription that receives its deliveries and hands its messages out. It waits
// neither for handlers nor for the broker.
type Dispatcher struct {
	Config
	Out      chan *message.Message // closed when the subscription stops
	Stopping context.Context       // ended: nothing more is handed out
	Expired  chan struct{}         // closed: the contexts of messages in flight end
	GivenUp  context.Context       // ended: messages in flight are not waited for any more
	GiveUp   func()                // ends GivenUp
	Over     chan struct{}         // closed when the dispatcher has ended
	Workers  sync.WaitGroup        // messages in flight
	InFlight atomic.Int64
	Backlog  atomic.Int64                                     // arrivals that have no place yet
	Counts   struct{ Deliveries, Redeliveries atomic.Uint64 } // since the start

	nacks    *nackCounts
	requests chan request
	handed   chan *Arrival // to the goroutines that await

	// Only the dispatcher's goroutine uses the following.
	deliveries <-chan amqp091.Delivery // nil: nothing is received
	receive    func(amqp091.Delivery)
	line       line     // messages that wait for a place only
	offered    *Arrival // the first one of line, with a place; nil: there is none
	closed     bool     // Out is
	quits      bool     // nothing follows
}

// A request is a call of a function in the dispatcher's goroutine.
type request struct {
	call func(*Arrival)
	with *Arrival
}

// New returns a dispatcher that does not run. From the end of stopping on, it hands nothing out.
func New(stopping context.Context, c Config) *Dispatcher {
	d := &Dispatcher{
		Config: c, Stopping: stopping, nacks: newNackCounts(), Out: make(chan *message.Message),
		Expired: make(chan struct{}), Over: make(chan struct{}), requests: make(chan request),
		handed: make(chan *Arrival, 64),
	}
	d.GivenUp, d.GiveUp = context.WithCancel(context.Background())
	return d
}

// Tell makes the dispatcher's goroutine call a function, and reports whether it does. It waits while a function of the
// app is called there, until GivenUp ends.
func (d *Dispatcher) Tell(call func(*Arrival), with *Arrival) bool {
	select {
	case d.requests <- request{call, with}:
		return true
	case <-d.GivenUp.Done():
		return false
	}
}

// Do makes the dispatcher's goroutine call a function, as Tell does, and waits until it has returned.
func (d *Dispatcher) Do(f func()) {
	done := make(chan struct{})
	if !d.Tell(func(*Arrival) { defer close(done); f() }, nil) {
		return
	}
	select {
	case <-done:
	case <-d.GivenUp.Done():
	}
}

// Quit ends the dispatcher, and waits for it.
func (d *Dispatcher) Quit() {
	select {
	case d.requests <- request{call: func(*Arrival) { d.quits = true }}:
		<-d.Over
	case <-d.Over:
	}
}

// Run dispatches until Quit.
func (d *Dispatcher) Run() {
	finished := false
	defer func() {
		if !finished { // a function of the app has ended the goroutine
			go d.Run()
		}
	}()
	await := func() { d.await(<-d.handed) } // one for all messages: it allocates
	for !d.quits {
		d.step(await)
	}
	d.close()
	d.GiveUp() // it calls nothing more
	finished = true
	close(d.Over)
}

// step waits for one event. await is run for each message that is handed out.
func (d *Dispatcher) step(await func()) {
	var out chan<- *message.Message
	var msg *message.Message
	if d.Stopping.Err() == nil && d.offer() {
		out, msg = d.Out, d.offered.Msg
	}
	select {
	case out <- msg: // the select below costs more
		d.handedOut(await)
		return
	default:
	}
	stopping := d.Stopping.Done()
	if d.closed {
		stopping = nil
	}
	select {
	case out <- msg:
		d.handedOut(await)
	case delivery, open := <-d.deliveries:
		if open {
			d.receive(delivery)
		} else {
			d.deliveries = nil
		}
	case <-d.Places.Changed():
	case r := <-d.requests:
		r.call(r.with)
	case <-stopping:
		d.close()
	}
}

func (d *Dispatcher) close() {
	if !d.closed {
		d.withdraw()
		d.closed = true
		close(d.Out)
	}
}

// Receive makes the dispatcher call receive for each delivery, in place of those that it has received from before.
func (d *Dispatcher) Receive(deliveries <-chan amqp091.Delivery, receive func(amqp091.Delivery)) {
	d.deliveries, d.receive = deliveries, receive
}

// Arrive makes an arrival of a delivery, and calls add, also where a function of the app ends the goroutine. Nil: there
// are no keys.
func (d *Dispatcher) Arrive(
	from Source, delivery amqp091.Delivery, keyOf func(*message.Message) string, add func(*Arrival),
) {
	d.Counts.Deliveries.Add(1)
	if delivery.Redelivered {
		d.Counts.Redeliveries.Add(1)
	}
	a := arrivals.Get().(*Arrival)
	*a = Arrival{Source: from, Delivery: delivery}
	defer func() { add(a) }()
	d.Unmarshal(a)
	if a.Err != nil || keyOf == nil {
		return
	}
	err := ErrExited
	defer func() {
		if err != nil {
			d.Logger.Error("A message has no order key", err, watermill.LogFields{"message_uuid": a.Msg.UUID})
		}
	}()
	err = panics.Error("Config.OrderKey", func() error { a.Key = keyOf(a.Msg); return nil })
}

// Unmarshal gives an arrival its message. Where a function of the app ends the goroutine, it has none.
func (d *Dispatcher) Unmarshal(a *Arrival) {
	a.Msg, a.Err = nil, ErrExited
	a.Err = panics.Error("Unmarshal", func() (err error) { a.Msg, err = d.Handler.Unmarshal(a.Delivery); return err })
	if a.Err != nil {
		a.Msg = nil
	}
}

// Prepare gives a message its context, and its place, which is not taken yet. When lost ends, nothing can settle it.
func (d *Dispatcher) Prepare(a *Arrival, values, lost context.Context) {
	ctx, place := msgctx.Each(values)
	a.place, a.lost, a.waits = place, lost, true
	d.Backlog.Add(1)
	if a.Of, _ = ctx.(*msgctx.Delivery); a.Of != nil {
		a.Of.Lost = lost
	}
	if a.Err == nil {
		ctx, a.end = context.WithCancelCause(ctx)
		a.Msg.SetContext(ctx)
	}
}

// Add hands an arrival out when there is a place for it, after those that were added before.
func (d *Dispatcher) Add(a *Arrival) { d.line.add(a) }

// offer reports whether a message can be handed out. A message that cannot be unmarshalled takes a place while its nack
// waits.
func (d *Dispatcher) offer() bool {
	if d.offered != nil && !d.offered.place.Fits() {
		d.withdraw()
	}
	for d.offered == nil && d.line.first != nil {
		a := d.line.first
		if !d.Places.Take(a.place) {
			return false
		}
		d.offered = a
		d.placed(a)
		switch {
		case a.Source.Gone().Err() != nil: // the broker delivers it again
			d.next()
			a.Source.GiveBack(a)
		case a.Err != nil:
			d.next()
			d.Workers.Go(func() { d.refuse(a) })
		}
	}
	return d.offered != nil
}

func (d *Dispatcher) placed(a *Arrival) {
	if a.waits {
		a.waits = false
		d.Backlog.Add(-1)
	}
}

// withdraw gives back the place of the message that is offered: the limit may have changed.
func (d *Dispatcher) withdraw() {
	if a := d.offered; a != nil {
		d.offered = nil
		a.place.Leave()
		a.waits = true
		d.Backlog.Add(1)
	}
}

// next takes the message that is offered out of the line.
func (d *Dispatcher) next() *Arrival {
	d.offered = nil
	return d.line.next()
}

func (d *Dispatcher) handedOut(await func()) {
	a := d.next()
	d.InFlight.Add(1)
	d.Workers.Add(1)
	go await()
	d.handed <- a
}

// GiveBack makes the arrivals of a source go back that were not handed out, with those that wait for their keys and the
// others, in the order of the queue. Nil: those of all sources.
func (d *Dispatcher) GiveBack(of Source, keys Keys, others ...*Arrival) {
	d.withdraw()
	back := slices.Concat(keys.Remove(of), d.line.remove(of), others)
	slices.SortFunc(back, func(a, b *Arrival) int { return cmp.Compare(a.Delivery.DeliveryTag, b.Delivery.DeliveryTag) })
	for _, a := range back {
		a.Source.GiveBack(a)
	}
}

// Leave ends the context of a message, and gives its place back.
func (d *Dispatcher) Leave(a *Arrival) {
	if a.end != nil {
		a.end(errSettled)
	}
	d.placed(a)
	a.place.Leave()
}
