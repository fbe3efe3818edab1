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

// returnSuffix makes the name of the router handler that gets the retries.
const returnSuffix = ".retry"

// Handler is one handler on two topics, its own and the one on which its retries come back.
type Handler struct {
	Topic  *message.Handler // subscribed to the handler's own topic, under the handler's name
	Return *message.Handler // subscribed to its return topic, under that name and ".retry"
}

// AddMiddleware adds middlewares to the handler, whichever topic a message comes from. The first added is the outermost.
func (h *Handler) AddMiddleware(m ...message.HandlerMiddleware) {
	h.Topic.AddMiddleware(m...)
	h.Return.AddMiddleware(m...)
}

// AddConsumerHandler adds a handler to the router, as the router's own AddConsumerHandler does, and a second one under
// name+".retry" that gets the retries of the first and of nobody else. Both use the subscriber.
func (r *Relay) AddConsumerHandler(
	router *message.Router, name, topic string, subscriber message.Subscriber, handler message.NoPublishHandlerFunc,
) *Handler {
	first, second := r.wrap(name, topic, subscriber)
	return &Handler{
		Topic:  router.AddConsumerHandler(name, topic, first, handler),
		Return: router.AddConsumerHandler(name+returnSuffix, second.topic, second, handler),
	}
}

// AddHandler is AddConsumerHandler for handlers that produce messages, as the router's own AddHandler is.
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
		second.err = errors.New("a handler without a name has no return topic: name it")
	}
	return &topicSubscriber{Subscriber: subscriber, relay: r}, second
}

// claim refuses names that would lead a retry to somebody else, or in a circle.
func (r *Relay) claim(returns, topic, handler string) error {
	dead, err := r.config.topic(TopicParams{Kind: DeadLetterTopic, Handler: handler})
	if err != nil {
		return err
	}
	for _, name := range []string{returns, dead} {
		if tier, taken := r.hops[name]; taken {
			return fmt.Errorf("GenerateTopic names %q for handler %q, which is the topic of tier %v: every topic needs a name of its own", name, handler, tier.tier)
		}
	}
	if returns == dead || returns == topic {
		return fmt.Errorf("GenerateTopic names %q as the return topic of handler %q, which is its own or its dead-letter topic, too: "+
			"every topic needs a name of its own", returns, handler)
	}
	return r.handlers.claim(returns, handler)
}

// topicSubscriber has the tiers subscribed before the first message can fail: some backends drop what nobody subscribes.
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

// String is the wrapped subscriber's name in logs and poison metadata.
func (s *topicSubscriber) String() string { return structName(s.Subscriber) }

// returnSubscriber tells the middleware where the messages of a return topic originally failed.
type returnSubscriber struct {
	message.Subscriber
	relay           *Relay
	handler, origin string
	topic           string
	err             error // why there is no return topic
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

// structName is what the router makes of a subscriber or publisher.
func structName(v any) string {
	if named, ok := v.(fmt.Stringer); ok {
		return named.String()
	}
	return strings.TrimLeft(fmt.Sprintf("%T", v), "*")
}

// sharedPublisher is closed with the second of its handlers: the router closes a handler's publisher when it stops.
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

// registry knows the handlers of this process, and whether their return topics have a subscriber.
type registry struct {
	mu      sync.RWMutex
	ready   map[string]bool   // by handler
	returns map[string]string // handlers by return topic
}

func (g *registry) claim(returns, handler string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if other, taken := g.returns[returns]; taken && other != handler {
		return fmt.Errorf("GenerateTopic gives the handlers %q and %q the same return topic %q: every handler needs one of its own", other, handler, returns)
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

func (g *registry) knows(handler string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	_, known := g.ready[handler]
	return known
}

// waiting tells whether a handler of this process has yet to subscribe its return topic.
func (g *registry) waiting(handler string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	ready, known := g.ready[handler]
	return known && !ready
}
