package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// returnSuffix is added to a handler's name to name the router handler that receives its retries.
const returnSuffix = ".retry"

// Handler is one handler on two topics: its own, and the return topic on which its retries come back.
type Handler struct {
	Topic  *message.Handler // subscribed to the handler's own topic; has the handler's name
	Return *message.Handler // subscribed to its return topic; has the handler's name plus ".retry"
}

// AddMiddleware adds middlewares to the handler, for messages of both topics. The first added is the outermost.
func (h *Handler) AddMiddleware(m ...message.HandlerMiddleware) {
	h.Topic.AddMiddleware(m...)
	h.Return.AddMiddleware(m...)
}

// AddConsumerHandler adds a handler to the router, as the router's own AddConsumerHandler does, and a second one named
// name+".retry", which receives the retries of this handler only. Both use the subscriber. An invalid name or topic is reported
// by the router's Run.
func (r *Relay) AddConsumerHandler(
	router *message.Router, name, topic string, subscriber message.Subscriber, handler message.NoPublishHandlerFunc,
) *Handler {
	first, second := r.wrap(name, topic, subscriber)
	return &Handler{
		Topic:  router.AddConsumerHandler(name, topic, first, handler),
		Return: router.AddConsumerHandler(name+returnSuffix, second.topic, second, handler),
	}
}

// AddHandler is AddConsumerHandler for a handler that produces messages, like the router's own AddHandler. The publisher is
// closed when both router handlers have stopped.
func (r *Relay) AddHandler(
	router *message.Router, name, subscribeTopic string, subscriber message.Subscriber,
	publishTopic string, publisher message.Publisher, handler message.HandlerFunc,
) *Handler {
	first, second := r.wrap(name, subscribeTopic, subscriber)
	shared := &sharedPublisher{Publisher: publisher}
	shared.users.Store(2)
	return &Handler{
		Topic:  router.AddHandler(name, subscribeTopic, first, publishTopic, shared, handler),
		Return: router.AddHandler(name+returnSuffix, second.topic, second, publishTopic, shared, handler),
	}
}

func (r *Relay) wrap(name, topic string, subscriber message.Subscriber) (*topicSubscriber, *returnSubscriber) {
	r.handlers.add(name)
	second := &returnSubscriber{Subscriber: subscriber, relay: r, handler: name, origin: topic}
	second.topic, second.err = r.config.topic(TopicParams{Kind: ReturnTopic, Handler: name})
	if second.err == nil {
		second.err = r.claim(second.topic, topic, name)
	}
	if name == "" {
		second.err = errors.New("the handler has no name, and its return topic is named after it: give it a name")
	}
	return &topicSubscriber{Subscriber: subscriber, relay: r}, second
}

// claim refuses topic names with which a retry would come to another handler or to its own tier again.
func (r *Relay) claim(returns, topic, handler string) error {
	dead, err := r.config.topic(TopicParams{Kind: DeadLetterTopic, Handler: handler})
	if err != nil {
		return err
	}
	for _, name := range []string{returns, dead} {
		if tier, taken := r.byTopic[name]; taken {
			return fmt.Errorf("GenerateTopic returned %q for both handler %q and tier %v; names must be unique", name, handler, tier.tier)
		}
	}
	if returns == dead || returns == topic {
		return fmt.Errorf("GenerateTopic returned %q as the return topic of handler %q, but its own topic is %q and its dead-letter topic %q; "+
			"names must be unique", returns, handler, topic, dead)
	}
	return r.handlers.claim(returns, handler)
}

// topicSubscriber subscribes the tiers before the first message can fail: some backends drop messages without a subscriber.
type topicSubscriber struct {
	message.Subscriber
	relay *Relay
}

func (s *topicSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.relay.use(ctx); err != nil {
		return nil, err
	}
	return s.Subscriber.Subscribe(ctx, topic)
}

// String returns the wrapped subscriber's name, for logs and for the poison-queue metadata.
func (s *topicSubscriber) String() string { return structName(s.Subscriber) }

// returnSubscriber subscribes to a return topic and sets the topic and handler where its messages failed.
type returnSubscriber struct {
	message.Subscriber
	relay           *Relay
	handler, origin string
	topic           string
	err             error // set if there is no valid return topic
}

func (s *returnSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.err != nil {
		return nil, s.err
	}
	if err := s.relay.use(ctx); err != nil {
		return nil, err
	}
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	s.relay.handlers.subscribed(s.handler)
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			msg.SetContext(middleware.WithOrigin(msg.Context(), s.origin, s.handler))
			out <- msg
		}
	}()
	return out, nil
}

func (s *returnSubscriber) String() string { return structName(s.Subscriber) }

// structName returns the name that the router gives to a subscriber or publisher.
func structName(v any) string {
	if named, ok := v.(fmt.Stringer); ok {
		return named.String()
	}
	return strings.TrimLeft(fmt.Sprintf("%T", v), "*")
}

// sharedPublisher closes its publisher only after both handlers have stopped: the router closes the publisher of each handler.
type sharedPublisher struct {
	message.Publisher
	users atomic.Int32
}

func (p *sharedPublisher) Close() error {
	if p.users.Add(-1) > 0 {
		return nil
	}
	return p.Publisher.Close()
}

func (p *sharedPublisher) String() string { return structName(p.Publisher) }

// registry lists the handlers of this process and whether they have subscribed to their return topics.
type registry struct {
	mu      sync.RWMutex
	ready   map[string]bool   // by handler
	returns map[string]string // handlers by return topic
}

func (g *registry) claim(returns, handler string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if other, taken := g.returns[returns]; taken && other != handler {
		return fmt.Errorf("GenerateTopic returned %q as the return topic of both handler %q and handler %q; names must be unique", returns, other, handler)
	}
	if g.returns == nil {
		g.returns = map[string]string{}
	}
	g.returns[returns] = handler
	return nil
}

func (g *registry) add(handler string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ready == nil {
		g.ready = map[string]bool{}
	}
	if _, known := g.ready[handler]; !known {
		g.ready[handler] = false
	}
}

func (g *registry) subscribed(handler string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready[handler] = true
}

func (g *registry) has(handler string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	_, known := g.ready[handler]
	return known
}

// unsubscribed reports whether a handler of this process has not subscribed to its return topic yet.
func (g *registry) unsubscribed(handler string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	ready, known := g.ready[handler]
	return known && !ready
}
