package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// AddConsumerHandler adds a handler to the router, as the router's own AddConsumerHandler does. Its messages are those
// of its topic, and its retries from its return topic: the subscriber is subscribed to both. Add the retry middleware
// to the handler that is returned. An invalid name or topic is reported by the router's Run.
func (r *Relay) AddConsumerHandler(
	router *message.Router, name, topic string, subscriber message.Subscriber, handler message.NoPublishHandlerFunc,
) *message.Handler {
	return router.AddConsumerHandler(name, topic, r.handlerSubscriber(name, topic, subscriber), handler)
}

// AddHandler is AddConsumerHandler for a handler that produces messages, like the router's own AddHandler.
func (r *Relay) AddHandler(
	router *message.Router, name, subscribeTopic string, subscriber message.Subscriber,
	publishTopic string, publisher message.Publisher, handler message.HandlerFunc,
) *message.Handler {
	return router.AddHandler(name, subscribeTopic, r.handlerSubscriber(name, subscribeTopic, subscriber), publishTopic,
		publisher, handler)
}

func (r *Relay) handlerSubscriber(name, topic string, subscriber message.Subscriber) *handlerSubscriber {
	s := &handlerSubscriber{
		Subscriber: subscriber, relay: r, name: name, handlerOf: func(string) string { return name },
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.err = s.claim(topic)
	return s
}

// claim reserves the return topic of one topic's handler. It refuses names with which a retry would come to another
// handler or to its own tier again.
func (s *handlerSubscriber) claim(topic string) error {
	if s.name == "" {
		return errors.New("the handler has no name, and its return topic is named after it: give it a name")
	}
	r, handler := s.relay, s.handlerOf(topic)
	returns, err := r.config.Topic(TopicParams{Kind: ReturnTopic, Handler: handler})
	if err != nil {
		return err
	}
	dead, err := r.config.Topic(TopicParams{Kind: DeadLetterTopic, Handler: handler})
	if err != nil {
		return err
	}
	for _, name := range []string{returns, dead} {
		if tier, taken := r.tiers.Load().byTopic[name]; taken {
			return fmt.Errorf("GenerateTopic returned %q for both handler %q and tier %v; names must be unique", name,
				handler, tier.tier)
		}
	}
	if returns == dead || returns == topic {
		return fmt.Errorf("GenerateTopic returned %q as the return topic of handler %q, but its own topic is %q and "+
			"its dead-letter topic %q; "+
			"names must be unique", returns, handler, topic, dead)
	}
	return r.handlers.claim(handler, returns, dead)
}

// structName returns the name that the router gives to a subscriber or publisher.
func structName(v any) string {
	if named, ok := v.(fmt.Stringer); ok {
		return named.String()
	}
	return strings.TrimLeft(fmt.Sprintf("%T", v), "*")
}

// registry lists the handlers of this process and whether they have subscribed to their return topics.
type registry struct {
	mu      sync.RWMutex
	ready   map[string]bool        // by handler
	active  map[string]func() bool // by handler: whether its subscription has not ended
	returns map[string]string      // handlers by return topic
	dead    map[string]string      // handlers by dead-letter topic; several may share one
}

func (g *registry) claim(handler, returns, dead string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.returns == nil {
		g.ready, g.active = map[string]bool{}, map[string]func() bool{}
		g.returns, g.dead = map[string]string{}, map[string]string{}
	}
	if other, taken := g.returns[returns]; taken && other != handler {
		return fmt.Errorf("GenerateTopic returned %q as the return topic of both handler %q and handler %q; names "+
			"must be unique", returns, other, handler)
	}
	g.returns[returns], g.dead[dead] = handler, handler
	if _, known := g.ready[handler]; !known {
		g.ready[handler] = false
	}
	return nil
}

// uses returns the handler whose return topic or dead-letter topic has this name.
func (g *registry) uses(topic string) (handler string, found bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if handler, found = g.returns[topic]; !found {
		handler, found = g.dead[topic]
	}
	return handler, found
}

// begin refuses a second subscription of a handler that is subscribed: on a Pub/Sub without consumer groups each of the
// two gets every message and every retry, and each failure doubles them.
func (g *registry) begin(handler, topic string, active func() bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if other := g.active[handler]; other != nil && other() {
		return fmt.Errorf("handler %q is subscribed already, and each of its subscriptions can get every message and "+
			"every retry: "+
			"subscribe to %q once, or use another name; after the end of the first subscription the name is "+
			"free", handler, topic)
	}
	g.active[handler] = active
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
