package retrytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// internalName is the name of a handler without messages. The relay's tiers run while it runs.
const internalName = "retrytest"

func tierTopic(tier backoff.Tier) string { return "retry." + tier.String() }

func returnTopic(handler string) string { return "retry.return." + handler }

// queueTopic is the topic on which retries come back to a queue.
func queueTopic(group, topic string) string { return fmt.Sprintf("retry.queue.%q.%s", group, topic) }

func deadTopic(handler string) string { return "retry.dead." + handler }

// openSubscriber ignores Close. The App closes its Pub/Sub after the routers and the relay have closed.
type openSubscriber struct{ message.Subscriber }

func (openSubscriber) Close() error { return nil }

// group is a consumer group: its subscribers share the messages of a topic and their retries.
type group struct {
	app    *App
	name   string
	mu     sync.Mutex
	queues map[string]*queue // by topic
}

// queue has the messages of one topic for one group, and their retries.
type queue struct {
	group, topic string
	returnTopic  string
	arrived      chan *message.Message
	messages     chan *message.Message
	back         chan *message.Message
	latest       time.Time // the latest event of one of its messages; guarded by the ledger's lock
}

// run keeps the messages that have arrived until a handler takes them. gochannel holds a mutex while a message is not
// taken: in testing/synctest that stops the clock.
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

// group returns the group of this name. The name can be empty.
func (a *App) group(name string) *group {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.groups[name] == nil {
		a.groups[name] = &group{app: a, name: name, queues: map[string]*queue{}}
	}
	return a.groups[name]
}

// putBack makes a message the first one of the queue again.
func (q *queue) putBack(ctx context.Context, msg *message.Message) {
	select {
	case q.back <- msg:
	case <-ctx.Done():
	}
}

// subscriber subscribes to queues of a group.
type subscriber struct {
	group     *group
	name      string
	isHandler bool // the name is that of a handler of one topic
	binding   *msgctx.Subscription
	ctx       context.Context
	end       context.CancelFunc
}

// Subscribe returns a channel that is closed when the context ends. It gets no messages after the App has stopped.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.ctx.Err() != nil {
		return nil, errors.New("the subscriber is closed: make a new one")
	}
	q, err := s.group.queue(topic)
	if err != nil {
		return nil, err
	}
	if s.isHandler {
		s.group.app.ledger.addHandler(s.name, q)
	}
	health := s.group.app.health.Begin(s.name, topic)
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		defer health.End()
		s.deliver(ctx, q, out)
	}()
	return out, nil
}

// A valve is the limit of one subscription.
type valve struct {
	limit, inFlight atomic.Int64
	changed         chan struct{} // receives after a change of limit
}

// Limit implements gate.Valve.
func (v *valve) Limit(n int) {
	v.limit.Store(int64(n))
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// Taken implements gate.Valve.
func (v *valve) Taken() int { return int(v.inFlight.Load()) }

func (v *valve) full() bool {
	most := v.limit.Load()
	return most >= 0 && v.inFlight.Load() >= most
}

// deliver hands messages on until ctx ends. While the handler is paused, they stay in the queue, for other handlers of
// the group.
func (s *subscriber) deliver(ctx context.Context, q *queue, out chan<- *message.Message) {
	v := &valve{changed: make(chan struct{}, 1)}
	defer s.binding.Gate.Attach(v)()
	settled := make(chan struct{})
	ended := make(chan struct{})
	defer close(ended)
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
		case <-settled:
			v.inFlight.Add(-1)
		case msg := <-in:
			if v.full() { // since then
				q.putBack(s.group.app.ctx, msg)
				continue
			}
			if !s.group.app.begin(q, msg) {
				continue
			}
			v.inFlight.Add(1)
			msg.SetContext(msgctx.NewContext(msg.Context(), s.binding))
			out <- msg
			go func() {
				select {
				case <-msg.Acked():
				case <-msg.Nacked():
				case <-ended:
				}
				select {
				case settled <- struct{}{}:
				case <-ended:
				}
			}()
		}
	}
}

// Close ends the subscriptions.
func (s *subscriber) Close() error {
	s.end()
	return nil
}

func (g *group) queue(topic string) (*queue, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if existing := g.queues[topic]; existing != nil {
		return existing, nil
	}
	q := &queue{
		group: g.name, topic: topic, returnTopic: queueTopic(g.name,
			topic), arrived: make(chan *message.Message), messages: make(chan *message.Message),
		back: make(chan *message.Message),
	}
	go q.run(g.app.ctx)
	sources := []string{topic, q.returnTopic}
	if g.app.ledger.isReturnTopic(topic) { // the relay subscribes to it itself
		sources = sources[:1]
	}
	for _, source := range sources {
		in, err := g.app.pubSub.Subscribe(g.app.ctx, source)
		if err != nil {
			return nil, err
		}
		go g.forward(in, q)
	}
	g.queues[topic] = q
	g.app.ledger.addQueue(q)
	return q, nil
}

func (g *group) forward(in <-chan *message.Message, q *queue) {
	for msg := range in {
		select {
		case q.arrived <- msg:
		case <-g.app.ctx.Done():
		}
	}
}

// begin records the delivery of a message to a handler. It reports false where the message is not delivered any more.
func (a *App) begin(q *queue, msg *message.Message) bool {
	d, known := a.ledger.beginDelivery(q, msg)
	if known && d == nil {
		msg.Ack() // the message was nacked too often
		return false
	}
	if known {
		msg.SetContext(context.WithValue(msg.Context(), deliveryKey{}, d))
		go a.observeSettlement(d, msg)
	}
	return true
}

// relayPublisher is the relay's publisher.
type relayPublisher struct{ app *App }

func (p relayPublisher) Publish(topic string, messages ...*message.Message) error {
	if !p.app.ledger.isReturnTopic(topic) {
		for _, msg := range messages {
			p.app.ledger.addPublished(topic, msg)
		}
	}
	return p.app.pubSub.Publish(topic, messages...)
}

func (relayPublisher) Close() error { return nil }

// appPublisher is the publisher of the app's own messages.
type appPublisher struct{ app *App }

func (p appPublisher) Publish(topic string, messages ...*message.Message) error {
	p.app.ledger.addProduced(topic, messages)
	return relayPublisher(p).Publish(topic, messages...)
}

func (appPublisher) Close() error { return nil }

// appBackend is that of the retry middleware: the relay's, with a ledger.
type appBackend struct {
	backend.Backend
	app *App
}

// Use implements backend.Backend.
func (b appBackend) Use(policy retry.Policy) (backend.Traits, error) {
	wait := b.app.config.TiersWait
	for _, tier := range middleware.Tiers(policy, wait) { // one more than the relay itself needs
		policy.ExtraTiers = append(slices.Clip(policy.ExtraTiers), time.Duration(tier))
	}
	traits, err := b.Backend.Use(policy)
	traits.TiersWait, traits.Source, traits.Observers = wait, b.app.source, &b.app.observers
	return traits, err
}

// Publish implements backend.Backend. Each copy has the context values of the delivery that it replaces.
func (b appBackend) Publish(c backend.Copy) (retry.Destination, error) {
	if d := deliveryOf(c.Message); d != nil {
		b.app.ledger.copyPublished(d, c.Tier, c.Message) // before the copy can come back
	}
	if b.app.config.TiersWait && c.Tier > 0 {
		dueAfterItsTier(c)
	}
	return b.Backend.Publish(c)
}
