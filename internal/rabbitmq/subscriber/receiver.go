package subscriber

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
)

// errExited is the error of a message with which a function of the app has called runtime.Goexit. No function can stop
// that, so another goroutine goes on.
var errExited = errors.New("a function of the app ended the goroutine")

// A receiver is the goroutine of a subscription that receives its deliveries and hands its messages out. What it has
// received and not handed out is its backlog. It waits neither for handlers nor for the broker.
type receiver struct {
	*subscription
	out      chan *message.Message // closed when the subscription stops
	requests chan func()
	handed   chan *arrival // to the goroutines that await
	keys     chan key      // of messages that are settled; nil: messages have no keys
	stopped  chan struct{} // closed after out
	over     chan struct{} // closed when the receiver has ended

	backlog atomic.Int64 // its messages, without the one that has a place

	// Only the receiver uses the following.
	from    *session          // without an order: that is received from; nil: there is none
	opening *arrival          // whose functions of the app are called
	line    line              // messages that wait for a place only
	offered *arrival          // the first one of line, with a place; nil: there is none
	waiting map[key]line      // by key; a key is in the map while a message with it is in line or handed out
	held    map[*arrival]bool // messages of partitions that wait with their keys taken
	heads   map[key]*arrival  // those of them that have a key, by key
	kept    map[uint64]*keeping
	aside   int  // messages that were set aside, when it last looked
	closed  bool // out is
	quits   bool // nothing follows
}

// ask makes the receiver's goroutine call a function of this package, and reports whether it does. It waits while the
// receiver calls a function of the app, until givenUp is closed.
func (r *receiver) ask(f func()) bool {
	select {
	case r.requests <- f:
		return true
	case <-r.givenUp:
	case <-r.over:
	}
	return false
}

// quit ends the receiver, and waits for it.
func (r *receiver) quit() {
	select {
	case r.requests <- func() { r.quits = true }:
		<-r.over
	case <-r.over:
	}
}

func newReceiver(s *subscription) *receiver {
	r := &receiver{
		subscription: s,
		out:          make(chan *message.Message),
		requests:     make(chan func()),
		stopped:      make(chan struct{}),
		over:         make(chan struct{}),
		waiting:      make(map[key]line),
		held:         make(map[*arrival]bool),
		heads:        make(map[key]*arrival),
		kept:         make(map[uint64]*keeping),
		handed:       make(chan *arrival, min(s.config.Concurrency, 64)),
	}
	if s.config.OrderKey != nil && (s.config.Concurrency > 1 || s.config.Order != nil) {
		r.keys = make(chan key)
	}
	return r
}

// run receives until a request ends it.
func (r *receiver) run() {
	finished := false
	defer func() {
		if !finished {
			go r.run()
		}
	}()
	if a := r.opening; a != nil { // a function of the app has ended the goroutine
		if a.msg == nil {
			a.err = errExited
		} else {
			r.logNoKey(a, errExited)
		}
		r.add(a)
	}
	await := func() { r.await(<-r.handed) } // one for all messages: it allocates
	for !r.quits {
		r.step(await)
	}
	r.giveBack(nil)
	finished = true
	close(r.over)
}

// step waits for one event. await is run for each message that is handed out.
func (r *receiver) step(await func()) {
	var out chan<- *message.Message
	var msg *message.Message
	if !r.subscription.stopped() && r.offer() {
		out, msg = r.out, r.offered.msg
	}
	select {
	case out <- msg: // the select below costs more
		r.handedOut(await)
		return
	default:
	}
	var deliveries <-chan amqp091.Delivery
	if r.from != nil {
		deliveries = r.from.deliveries
	}
	stopping := r.stopping
	if r.closed {
		stopping = nil
	}
	select {
	case out <- msg:
		r.handedOut(await)
	case delivery, open := <-deliveries:
		if !open {
			close(r.from.ended)
			r.from = nil
			break
		}
		r.receive(r.from, delivery)
	case <-r.places.Changed():
		if aside := r.places.Aside(); aside != r.aside {
			r.aside = aside
			r.look()
		}
	case key := <-r.keys:
		r.release(key)
	case f := <-r.requests:
		f()
	case <-stopping:
		r.withdraw()
		r.closed = true
		close(r.out)
		close(r.stopped)
	}
}

// begin receives from a session.
func (r *receiver) begin(n *session) {
	if r.from != nil { // it was lost
		go r.from.giveBack()
	}
	r.from = n
}

// receive adds a delivery to the backlog.
func (r *receiver) receive(session *session, delivery amqp091.Delivery) {
	session.arrive(delivery.DeliveryTag)
	if r.closed || session.gone() || !session.users.Enter() {
		session.nack(delivery.DeliveryTag)
		return
	}
	r.counts.deliveries.Add(1)
	if delivery.Redelivered {
		r.counts.redeliveries.Add(1)
	}
	a := arrivals.Get().(*arrival)
	*a = arrival{session: session, delivery: delivery}
	r.opening = a
	r.unmarshal(a)
	if a.err == nil && r.keys != nil {
		a.key.partition = session.number
		err := panics.Error("Config.OrderKey", func() error { a.key.of = r.config.OrderKey(a.msg); return nil })
		if err != nil {
			r.logNoKey(a, err)
		}
	}
	r.add(a)
}

func (r *receiver) logNoKey(a *arrival, err error) {
	r.logger.Error("A message has no order key", err, watermill.LogFields{"message_uuid": a.msg.UUID})
}

func (r *receiver) add(a *arrival) {
	r.opening = nil
	r.backlog.Add(1)
	r.prepare(a)
	r.take(a)
	if a.key.of != "" {
		if behind, busy := r.waiting[a.key]; busy {
			behind.add(a)
			r.waiting[a.key] = behind
			if head := r.heads[a.key]; head != nil {
				head.count++
				head.session.partition.behind.Add(1)
			}
			return
		}
		r.waiting[a.key] = line{}
	}
	r.first(a)
}

// prepare gives a message its context, and its place, which is not taken yet.
func (r *receiver) prepare(a *arrival) {
	ctx, place := msgctx.Each(a.session.values)
	a.place = place
	if a.of, _ = ctx.(*msgctx.Delivery); a.of != nil {
		a.of.Leaving, a.of.Lost = a.session.ending, a.session.settler.lost
	}
	if a.err == nil {
		ctx, a.end = context.WithCancelCause(ctx)
		a.msg.SetContext(ctx)
	}
}

// release lets the next message of a key follow.
func (r *receiver) release(of key) {
	behind := r.waiting[of]
	a := behind.next()
	if a == nil {
		delete(r.waiting, of)
		return
	}
	r.waiting[of] = behind
	r.take(a) // the call before it may have been with the same message
	r.first(a)
}

// offer reports whether a message can be handed out. A message that cannot be unmarshalled takes a place while its nack
// waits.
func (r *receiver) offer() bool {
	if r.offered != nil && !r.offered.place.Fits() {
		r.withdraw()
	}
	for r.offered == nil && r.line.first != nil {
		a := r.line.first
		if !r.places.Take(a.place) {
			return false
		}
		r.offered = a
		r.backlog.Add(-1)
		switch {
		case a.session.gone(): // the broker delivers it again
			r.next()
			a.session.nack(a.delivery.DeliveryTag)
			r.leave(a)
		case a.err != nil:
			r.next()
			r.workers.Go(func() { r.refuse(a) })
		}
	}
	return r.offered != nil
}

func (r *receiver) releaseOf(a *arrival) {
	if a.key.of != "" {
		r.release(a.key)
	}
}

// withdraw gives back the place of the message that is offered: the limit may have changed.
func (r *receiver) withdraw() {
	if r.offered != nil {
		r.offered.place.Leave()
		r.offered = nil
		r.backlog.Add(1)
	}
}

// next takes the message that is offered out of the line.
func (r *receiver) next() *arrival {
	r.offered = nil
	return r.line.next()
}

func (r *receiver) handedOut(await func()) {
	a := r.next()
	r.inFlight.Add(1)
	r.workers.Add(1)
	go await()
	r.handed <- a
}

// giveBack gives back the backlog of a session, in the order of the queue. Nil: of all.
func (r *receiver) giveBack(of *session) {
	r.withdraw()
	var back []*arrival
	take := func(a *arrival) bool {
		if of != nil && a.session != of {
			return false
		}
		back = append(back, a)
		return true
	}
	for key, behind := range r.waiting {
		behind.remove(take)
		r.waiting[key] = behind
	}
	behind := len(back)
	r.line.remove(take)
	for _, a := range back[behind:] {
		r.releaseOf(a)
	}
	slices.SortFunc(back, func(a, b *arrival) int {
		return cmp.Compare(a.delivery.DeliveryTag, b.delivery.DeliveryTag)
	})
	for _, a := range back {
		a.session.nack(a.delivery.DeliveryTag)
		if a.kept != nil {
			a.kept.at, a.kept.left = nil, time.Now()
		}
		r.settled(a)
	}
	r.leaveAll(of)
	r.backlog.Add(-int64(len(back)))
}
