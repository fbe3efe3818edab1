package retrytest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// queue has the messages of one topic for one consumer group: its subscribers share them.
type queue struct {
	group, topic string
	arrived      chan *message.Message
	back         chan *message.Message // becomes the first one
	messages     chan *message.Message
	latest       time.Time // the latest event of one of its messages; guarded by the ledger's lock
}

// run keeps the messages that have arrived until a handler takes them.
func (q *queue) run(ctx context.Context) {
	var waiting []*message.Message
	for {
		out, first := (chan *message.Message)(nil), (*message.Message)(nil)
		if len(waiting) > 0 {
			out, first = q.messages, waiting[0]
		}
		select {
		case <-ctx.Done():
			return
		case msg := <-q.arrived:
			waiting = append(waiting, msg)
		case msg := <-q.back:
			waiting = slices.Insert(waiting, 0, msg)
		case out <- first:
			waiting = waiting[1:]
		}
	}
}

// put sends a message to a channel of a queue, until the App stops.
func (a *App) put(to chan<- *message.Message, msg *message.Message) {
	select {
	case to <- msg:
	case <-a.ctx.Done():
	}
}

// publish publishes a message to every queue of a topic.
func (a *App) publish(topic string, msg *message.Message) *entry {
	e, queues := a.ledger.addPublished(topic, msg)
	for _, q := range queues {
		a.put(q.arrived, msg.Copy())
	}
	return e
}

// queue returns the queue of a topic for a group, whose name can be empty.
func (a *App) queue(group, topic string) *queue {
	q, made := a.ledger.queue(group, topic)
	if made {
		go q.run(a.ctx)
	}
	return q
}

// subscriber subscribes to queues of a group.
type subscriber struct {
	app         *App
	group, name string
	isHandler   bool // the name is that of a handler of one topic
	retry       *middleware.TieredRetry
	binding     *msgctx.Subscription
	ctx         context.Context
	end         context.CancelFunc
}

// Subscribe returns a channel that is closed when the context ends. It gets no messages after the App has stopped.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.ctx.Err() != nil {
		return nil, errors.New("the subscriber is closed: make a new one")
	}
	q := s.app.queue(s.group, topic)
	if s.isHandler {
		s.app.ledger.addHandler(s.name, q)
	}
	health := s.app.health.Begin(s.name, topic)
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		defer health.End()
		s.deliver(ctx, q, out)
		if s.app.ctx.Err() != nil {
			<-s.app.closed // see App.close
		}
	}()
	return out, nil
}

// Close ends the subscriptions.
func (s *subscriber) Close() error {
	s.end()
	return nil
}

// A valve is the limit of one subscription.
type valve struct {
	limit, inFlight atomic.Int64
	changed         chan struct{} // receives after a change
}

// Limit implements gate.Valve.
func (v *valve) Limit(n int) {
	v.limit.Store(int64(n))
	v.wake()
}

// Taken implements gate.Valve.
func (v *valve) Taken() int { return int(v.inFlight.Load()) }

func (v *valve) full() bool {
	most := v.limit.Load()
	return most >= 0 && v.inFlight.Load() >= most
}

func (v *valve) settled() {
	v.inFlight.Add(-1)
	v.wake()
}

func (v *valve) wake() {
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// deliver hands messages on until ctx ends. While the handler is paused, they stay in the queue, for other handlers of
// the group.
func (s *subscriber) deliver(ctx context.Context, q *queue, out chan<- *message.Message) {
	v := &valve{changed: make(chan struct{}, 1)}
	defer s.binding.Gate.Attach(v)()
	for {
		in := q.messages
		if v.full() {
			in = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		case <-v.changed:
		case msg := <-in:
			if v.full() { // since then
				s.app.put(q.back, msg)
				continue
			}
			if d := s.app.ledger.beginDelivery(q, msg); d != nil {
				v.inFlight.Add(1)
				s.hand(d, msg, v, out)
			}
		}
	}
}

// hand gives a delivery to the router, and watches how it is settled.
func (s *subscriber) hand(d *delivery, msg *message.Message, v *valve, out chan<- *message.Message) {
	again := msg.Copy()
	ctx, cancel := context.WithCancel(context.WithValue(s.app.ctx, deliveryKey{}, d))
	own := &msgctx.Delivery{Context: ctx, Subscription: s.binding}
	msg.SetContext(own)
	out <- msg
	go func() {
		defer cancel()
		defer v.settled()
		select {
		case <-msg.Acked():
			s.app.ledger.messageSettled(d, true)
		case <-msg.Nacked():
			if own.Processed() && s.notPublished(again.Copy(), own) {
				s.app.ledger.messageSettled(d, true)
				return
			}
			s.app.ledger.messageSettled(d, false)
			s.app.put(d.progress.queue.back, again)
		case <-s.app.closed:
		}
	}()
}

// notPublished retries a message whose handler has succeeded, and which the router has nacked nevertheless.
func (s *subscriber) notPublished(msg *message.Message, own *msgctx.Delivery) bool {
	msg.SetContext(&msgctx.Delivery{Context: own.Context, Subscription: s.binding})
	return s.retry.NotPublished(msg, own.Unpublished()) == nil
}

// appPublisher is the publisher of the app's own messages.
type appPublisher struct{ app *App }

func (p appPublisher) Publish(topic string, messages ...*message.Message) error {
	p.app.ledger.addProduced(topic, messages)
	for _, msg := range messages {
		p.app.publish(topic, msg)
	}
	return nil
}

func (appPublisher) Close() error { return nil }

// appBackend keeps the copies of the retry middleware until they are due.
type appBackend struct {
	app    *App
	blocks bool
}

// Use implements backend.Backend.
func (b appBackend) Use(retry.Policy) (backend.Traits, error) {
	return backend.Traits{
		TiersWait: b.app.config.TiersWait, DelayArrivals: true, Source: b.app.source, Observers: &b.app.observers,
		Blocks: b.blocks,
	}, nil
}

// Publish implements backend.Backend.
func (b appBackend) Publish(c backend.Copy) (backend.Destination, error) {
	d := deliveryOf(c.Message)
	if d == nil {
		return backend.Destination{}, errors.New("the context of the message was replaced: derive it from its own")
	}
	b.app.ledger.copyPublished(d, c)
	if c.Blocked {
		return backend.Destination{}, nil
	}
	if c.Tier == 0 {
		topic := "retry.dead." + c.Handler
		b.app.publish(topic, c.Message)
		return backend.Destination{Topic: topic}, nil
	}
	due := d.copied.DueAt
	if b.app.config.TiersWait {
		due = time.Now().Add(time.Duration(c.Tier))
	}
	// The times of a record are cut to whole milliseconds: no retry is early.
	due = due.Truncate(time.Millisecond).Add(time.Millisecond)
	msg, q := c.Message.Copy(), d.progress.queue
	time.AfterFunc(time.Until(due), func() { b.app.put(q.arrived, msg) })
	return backend.Destination{Topic: "retry." + c.Tier.String()}, nil
}
