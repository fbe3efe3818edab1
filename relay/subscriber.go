package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/internal/warning"
)

// subscriber subscribes to a topic and to the return topic of its handler, and delivers the messages of both on one
// channel. The stock subscriber is closed with the connection, because it can be a Pub/Sub that all share.
type subscriber struct {
	stock    message.Subscriber
	c        *connection
	name     string
	group    string
	calls    int  // at the same time, at most
	perTopic bool // without groups, the handler of a topic is "<name>.<topic>"
	schedule backoff.Schedule
	retry    *middleware.TieredRetry
	gate     *gate.Gate
	ctx      context.Context // ends with Close
	end      context.CancelFunc
}

// keyOf returns the handler that the failure record names, and the key of its topics.
func (s *subscriber) keyOf(topic string) (handler, key string) {
	switch {
	case s.c.relay.config.Group != "":
		return s.name, relaytopic.Key(s.group, topic)
	case s.perTopic:
		return s.name + "." + topic, relaytopic.Key(s.name, topic)
	default:
		return s.name, relaytopic.Key(s.name, "")
	}
}

// Subscribe subscribes to the return topic before the topic: some backends drop messages without a subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.ctx.Err() != nil {
		return nil, errors.New("the subscriber is closed: make a new one")
	}
	if err := s.c.faults.All(); err != nil {
		return nil, err
	}
	if err := options.Topic(topic); err != nil {
		return nil, faults.OfHandler(s.name, err)
	}
	r := s.c.relay
	handler, key := s.keyOf(topic)
	if r.topics.IsReturn(topic) {
		return nil, fmt.Errorf("%q is a return topic, so handler %q cannot have it as its topic: the relay subscribes "+
			"to it", topic, s.name)
	}
	r.handlers.add(key)
	ended, end := context.WithCancel(ctx)
	detach := context.AfterFunc(s.ctx, end)
	m := &merged{
		subscriber: s, ended: ended, out: make(chan *message.Message), topic: topic, handler: handler, key: key,
		calls: make(chan struct{}, s.calls), logger: r.logger,
	}
	m.stopping, m.stop = context.WithCancel(ended)
	m.subscribed, m.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ended, func() { m.end(nil) })
	context.AfterFunc(m.subscribed, func() { detach() })
	m.binding = &msgctx.Subscription{
		Owner: r, Retry: s.retry, Queue: key, Gate: s.gate, Stopping: m.stopping.Done(), Redelivers: true,
	}
	if err := m.start(r.topics.Return(key)); err != nil {
		m.end(err)
		return nil, err
	}
	return m.out, nil
}

// Close ends the subscriptions. A message in flight counts no failure from now on: the Pub/Sub may end its context at
// once.
func (s *subscriber) Close() error {
	s.end()
	return nil
}

// String returns the stock subscriber's name, for logs and for the poison-queue metadata.
func (s *subscriber) String() string { return structName(s.stock) }

// refused is the subscriber of a handler with faults.
type refused struct {
	faults *faults.Handlers // the faults of the connection
	why    error            // where there is none
}

func (r refused) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, cmp.Or(r.faults.All(), r.why)
}

func (refused) Close() error { return nil }

// structName returns the name that the router gives to a subscriber or publisher.
func structName(v any) string {
	if named, ok := v.(fmt.Stringer); ok {
		return named.String()
	}
	return strings.TrimLeft(fmt.Sprintf("%T", v), "*")
}

// merged is the subscriptions to a topic and to its return topic.
type merged struct {
	subscriber     *subscriber
	ended          context.Context // ends where the app ends the subscription
	stopping       context.Context // ends before subscribed: a handler that then fails counts no failure
	stop           context.CancelFunc
	subscribed     context.Context // the context of both subscriptions, and of their messages
	cancel         context.CancelCauseFunc
	out            chan *message.Message
	topic, handler string
	key            string        // the key of its return topic
	calls          chan struct{} // has one for each
	binding        *msgctx.Subscription
	health         *subscriptions.Subscription
	logger         watermill.LoggerAdapter
	warned         atomic.Bool
}

// active reports whether the subscription has not ended.
func (m *merged) active() bool { return m.stopping.Err() == nil && m.subscriber.ctx.Err() == nil }

// end ends both subscriptions. The first call tells why.
func (m *merged) end(why error) {
	m.stop()
	m.cancel(why)
}

func (m *merged) start(returnTopic string) error {
	s, r := m.subscriber, m.subscriber.c.relay
	if err := r.handlers.begin(m); err != nil {
		return err
	}
	if other := r.handlers.other(m); other != nil {
		warning.Log(m.logger, "Options.Policy.Schedule is not that of another handler of the same topic and group: which "+
			"of both retries a message is chance; give both handlers the same Policy, or each a Group",
			watermill.LogFields{
				"topic": m.topic, "schedule": s.schedule.String(), "other_handler": other.name,
				"other_schedule": other.schedule.String(),
			})
	}
	if err := r.use(m.subscribed); err != nil {
		return err
	}
	m.health = r.health.New(s.name, m.topic)
	returns, err := s.stock.Subscribe(m.health.Report(m.subscribed, returnTopic), returnTopic)
	if err != nil {
		return fmt.Errorf("cannot subscribe to the return topic %q of handler %q: %w", returnTopic, m.handler, err)
	}
	r.handlers.subscribed(m.key)
	messages, err := s.stock.Subscribe(m.health.Report(m.subscribed, m.topic), m.topic)
	if err != nil {
		m.end(err)
		go m.forward(returnTopic, returns) // a decorated subscriber blocks until its channel is read
		return err
	}
	m.health.Begin()
	var open sync.WaitGroup
	open.Go(func() { m.forward(returnTopic, returns) })
	open.Go(func() { m.forward(m.topic, messages) })
	go func() {
		open.Wait()
		if m.ended.Err() != nil {
			m.health.End()
		} else {
			m.health.Failed(context.Cause(m.subscribed))
		}
		close(m.out)
	}()
	return nil
}

// forward delivers the messages of one of the two subscriptions. When it ends, the other one ends too: a handler
// without its retries, or with nothing else, must not go unnoticed.
func (m *merged) forward(topic string, in <-chan *message.Message) {
	pause := shortestPause
	for msg := range in {
		if !m.deliver(msg) {
			msg.Nack()
			continue
		}
		if !m.binding.Claimed() && m.nacked(msg) {
			_ = pauses.Sleep(m.subscribed, pause)
			pause = min(2*pause, longestPause)
		}
	}
	m.end(fmt.Errorf("the subscriber closed the channel of %q", topic))
}

// deliver delivers a message when there is a place for its call, unless the subscription ends before. The router gets a
// copy: its nack after a success is a failure, which the Pub/Sub does not see.
func (m *merged) deliver(msg *message.Message) bool {
	select {
	case m.calls <- struct{}{}:
	case <-m.subscribed.Done():
		return false
	}
	given, own := msg.Copy(), m.delivery(msg)
	given.SetContext(own)
	if m.subscriber.c.unsettled.Enter() {
		select {
		case m.out <- given:
			go m.settle(msg, given, own)
			return true
		case <-m.subscribed.Done():
		}
		m.subscriber.c.unsettled.Leave()
	}
	<-m.calls
	return false
}

func (m *merged) delivery(msg *message.Message) *msgctx.Delivery {
	return &msgctx.Delivery{
		Context: msgctx.WithOrigin(msg.Context(), m.topic, m.handler), Subscription: m.binding,
	}
}

// settle settles a message as the router settles its copy. Close waits for it, but for no handler. What the app has can
// end the goroutine.
func (m *merged) settle(msg, given *message.Message, own *msgctx.Delivery) {
	defer func() { <-m.calls }()
	leave := sync.OnceFunc(m.subscriber.c.unsettled.Leave)
	defer leave()
	defer msg.Nack() // harmless after an ack
	select {
	case <-given.Acked():
	case <-given.Nacked():
	case <-m.subscriber.c.closing:
		if !isAcked(given) && !isNacked(given) {
			leave()
			select {
			case <-given.Acked():
			case <-given.Nacked():
			}
		}
	}
	switch {
	case isAcked(given):
		msg.Ack()
	case own.Processed():
		m.retry(msg, own.Unpublished())
	}
}

// retry retries a message whose handler has succeeded: what failed was outside of the retry middleware.
func (m *merged) retry(msg *message.Message, cause error) {
	original := msg.Copy()
	original.SetContext(m.delivery(msg))
	defer func() { // of a goroutine that ends
		if isAcked(original) {
			msg.Ack()
		}
	}()
	if m.subscriber.retry.NotPublished(original, cause) == nil {
		msg.Ack()
	}
}

func isAcked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

func isNacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// The pause after a nack of a handler without the retry middleware. Many Pub/Subs deliver such a message again at once.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = time.Second
)

// nacked waits until the handler has settled a message or its retry middleware has got one, and reports whether it has
// nacked it and has no retry middleware. It logs the first one.
func (m *merged) nacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
	case <-msg.Acked():
		return false
	case <-m.binding.AwaitClaim():
		return false
	case <-m.subscribed.Done():
		return false
	}
	if m.binding.Claimed() {
		return false
	}
	if !m.warned.Swap(true) {
		warning.Log(m.logger, "A message was nacked, and no retry middleware has got one of the handler's messages: "+
			"the message comes back after 10ms to 1s, again and again. Add the retry middleware to the handler or to "+
			"its router, before all middlewares that can fail",
			watermill.LogFields{"handler_name": m.handler, "topic": m.topic})
	}
	return true
}

// registry lists the return topics of this process, by their keys, and whether they are subscribed.
type registry struct {
	mu      sync.RWMutex
	ready   map[string]bool
	current map[string]*merged
	first   map[string]*merged // the subscriptions that came first and have not ended
}

// add adds a return topic that is going to be subscribed.
func (g *registry) add(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ready == nil {
		g.ready, g.current, g.first = map[string]bool{}, map[string]*merged{}, map[string]*merged{}
	}
	if _, known := g.ready[key]; !known {
		g.ready[key] = false
	}
}

// begin refuses a second subscription of a handler on a Pub/Sub without consumer groups: each of the two gets every
// message and every retry, and each failure doubles them.
func (g *registry) begin(m *merged) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	other := g.current[m.key]
	if other != nil && other.active() && m.subscriber.c.relay.config.Group == "" {
		return fmt.Errorf("handler %q is subscribed already, and each of its subscriptions can get every message and "+
			"every retry: subscribe to %q once, or use another name; after the end of the first subscription the "+
			"name is free", m.handler, m.topic)
	}
	g.current[m.key] = m
	return nil
}

// other returns the subscriber of another handler of a return topic, whose schedule is a different one, or nil.
func (g *registry) other(m *merged) *subscriber {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.first[m.key]
	if first == nil || !first.active() || first.subscriber.name == m.subscriber.name {
		g.first[m.key] = m
		return nil
	}
	if slices.Equal(first.subscriber.schedule, m.subscriber.schedule) {
		return nil
	}
	return first.subscriber
}

func (g *registry) subscribed(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready[key] = true
}

// unsubscribed reports whether a return topic of this process is not subscribed yet.
func (g *registry) unsubscribed(key string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	ready, known := g.ready[key]
	return known && !ready
}
