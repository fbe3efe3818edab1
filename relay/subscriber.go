package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/middleware"
)

var errHandlerEnded = errors.New("the subscriber closed the channel of the topic or of the return topic")

// subscriber subscribes to a topic and to the return topic of its handler, and delivers the messages of both on one
// channel. The stock subscriber is closed with the connection, because it can be a Pub/Sub that all share.
type subscriber struct {
	stock    message.Subscriber
	c        *connection
	name     string
	perTopic bool // the handler of a topic is "<name>.<topic>"
	retry    *middleware.TieredRetry
	gate     *gate.Gate
	ctx      context.Context // ends with Close
	end      context.CancelFunc
}

// handlerOf returns the handler whose return topic is used, and which the failure record names.
func (s *subscriber) handlerOf(topic string) string {
	if s.perTopic {
		return s.c.relay.topics.Handler(s.name, topic)
	}
	return s.name
}

// Subscribe subscribes to the return topic before the topic: some backends drop messages without a subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.ctx.Err() != nil {
		return nil, errors.New("the subscriber is closed: make a new one")
	}
	if err := s.c.faults.All(); err != nil {
		return nil, err
	}
	r, handler := s.c.relay, s.handlerOf(topic)
	returnTopic := r.topics.Return(handler)
	if returnTopic == topic {
		return nil, fmt.Errorf("%q is the return topic of handler %q, so it cannot be its topic: use another name",
			topic, handler)
	}
	r.handlers.add(handler)
	ended, end := context.WithCancel(ctx)
	detach := context.AfterFunc(s.ctx, end)
	m := &merged{
		subscriber: s, ended: ended, out: make(chan *message.Message), topic: topic, handler: handler, logger: r.logger,
	}
	m.stopping, m.stop = context.WithCancel(ended)
	m.subscribed, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ended, m.end)
	context.AfterFunc(m.subscribed, func() { detach() })
	m.binding = &msgctx.Subscription{Owner: r, Retry: s.retry, Gate: s.gate, Stopping: m.stopping.Done()}
	if err := m.start(returnTopic); err != nil {
		m.end()
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
	faults *faults.Handlers // of the connection
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
	subscribed     context.Context // of both subscriptions, and of their messages
	cancel         context.CancelFunc
	out            chan *message.Message
	topic, handler string
	binding        *msgctx.Subscription
	health         *subscriptions.Subscription
	logger         watermill.LoggerAdapter
	warned         atomic.Bool
}

// active reports whether the subscription has not ended.
func (m *merged) active() bool { return m.stopping.Err() == nil && m.subscriber.ctx.Err() == nil }

func (m *merged) end() {
	m.stop()
	m.cancel()
}

func (m *merged) start(returnTopic string) error {
	s, r := m.subscriber, m.subscriber.c.relay
	if err := r.handlers.begin(m); err != nil {
		return err
	}
	if err := r.use(m.subscribed); err != nil {
		return err
	}
	returns, err := s.stock.Subscribe(m.subscribed, returnTopic)
	if err != nil {
		return fmt.Errorf("cannot subscribe to the return topic %q of handler %q: %w", returnTopic, m.handler, err)
	}
	r.handlers.subscribed(m.handler)
	messages, err := s.stock.Subscribe(m.subscribed, m.topic)
	if err != nil {
		m.end()
		go m.forward(returns) // a decorated subscriber blocks until its channel is read
		return err
	}
	m.health = r.health.Begin(s.name, m.topic)
	var open sync.WaitGroup
	open.Go(func() { m.forward(returns) })
	open.Go(func() { m.forward(messages) })
	go func() {
		open.Wait()
		if m.ended.Err() != nil {
			m.health.End()
		} else {
			m.health.Failed(errHandlerEnded)
		}
		close(m.out)
	}()
	return nil
}

// forward delivers the messages of one of the two subscriptions. When it ends, the other one ends too: a handler
// without its retries, or with nothing else, must not go unnoticed.
func (m *merged) forward(in <-chan *message.Message) {
	pause := shortestPause
	for msg := range in {
		ctx := msgctx.WithOrigin(msg.Context(), m.topic, m.handler)
		msg.SetContext(msgctx.NewContext(ctx, m.binding))
		select {
		case m.out <- msg:
		case <-m.subscribed.Done():
			msg.Nack()
			continue
		}
		if !m.binding.Claimed() && m.nacked(msg) {
			sleep(m.subscribed, pause)
			pause = min(2*pause, longestPause)
		}
	}
	m.end()
}

// The pause after a nack of a handler without the retry middleware. Many Pub/Subs deliver such a message again at once.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = time.Second
)

// nacked waits until the handler has settled a message, and reports whether it has nacked it and has no retry
// middleware. It logs the first one.
func (m *merged) nacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
	case <-msg.Acked():
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

// registry lists the handlers of this process and whether they have subscribed to their return topics.
type registry struct {
	mu      sync.RWMutex
	ready   map[string]bool    // by handler
	current map[string]*merged // by handler
}

// add adds a handler that is going to subscribe.
func (g *registry) add(handler string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ready == nil {
		g.ready, g.current = map[string]bool{}, map[string]*merged{}
	}
	if _, known := g.ready[handler]; !known {
		g.ready[handler] = false
	}
}

// begin refuses a second subscription of a handler that is subscribed: on a Pub/Sub without consumer groups each of the
// two gets every message and every retry, and each failure doubles them.
func (g *registry) begin(m *merged) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if other := g.current[m.handler]; other != nil && other.active() {
		return fmt.Errorf("handler %q is subscribed already, and each of its subscriptions can get every message and "+
			"every retry: subscribe to %q once, or use another name; after the end of the first subscription the "+
			"name is free", m.handler, m.topic)
	}
	g.current[m.handler] = m
	return nil
}

func (g *registry) subscribed(handler string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready[handler] = true
}

// unsubscribed reports whether a handler of this process has not subscribed to its return topic yet.
func (g *registry) unsubscribed(handler string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	ready, known := g.ready[handler]
	return known && !ready
}
