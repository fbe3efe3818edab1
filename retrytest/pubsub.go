package retrytest

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

// internalName is of the handler that keeps the tiers running.
const internalName = "retrytest"

// relayedName is the name under which the relay adds a handler once more, for its retries.
func relayedName(handler string) string { return handler + ".retry" }

func tierTopic(tier backoff.Tier) string { return "retry." + tier.String() }

func returnTopic(handler string) string { return "retry.return." + handler }

func deadTopic(handler string) string { return "retry.dead." + handler }

// openSubscriber is not closed by a router or relay: the App closes its Pub/Sub itself.
type openSubscriber struct{ message.Subscriber }

func (openSubscriber) Close() error { return nil }

// group is a subscriber whose handlers share the messages of a topic and their retries.
type group struct {
	app    *App
	name   string
	mu     sync.Mutex
	queues map[string]*queue // by topic
}

// queue is a topic in a group: its messages and the ones that came back.
type queue struct {
	group, topic string
	returnTopic  string
	messages     chan *message.Message
}

// Subscribe returns a channel that ends with the context, and gets nothing more once the App has stopped.
func (g *group) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	q, err := g.queue(topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case msg := <-q.messages:
				out <- msg
			}
		}
	}()
	return out, nil
}

// Close does nothing: subscriptions end with their context.
func (g *group) Close() error { return nil }

func (g *group) queue(topic string) (*queue, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.queues[topic]; known != nil {
		return known, nil
	}
	q := &queue{group: g.name, topic: topic, returnTopic: returnTopic(g.name + "." + topic), messages: make(chan *message.Message)}
	sources := []string{topic, q.returnTopic}
	if g.app.ledger.isReturnTopic(topic) { // of a handler that the relay has added
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
	g.app.ledger.subscribed(q)
	return q, nil
}

func (g *group) forward(in <-chan *message.Message, q *queue) {
	for msg := range in {
		v, known := g.app.ledger.begin(q, msg)
		if known && v == nil {
			msg.Ack() // a nack would bring it back for ever
			continue
		}
		if known {
			msg.SetContext(context.WithValue(msg.Context(), visitKey{}, v))
			go g.app.settled(v, msg)
		}
		select {
		case q.messages <- msg:
		case <-g.app.ctx.Done():
			if known {
				g.app.ledger.discard(v)
			}
		}
	}
}

// transport is what the relay publishes with.
type transport struct{ app *App }

func (p transport) Publish(topic string, messages ...*message.Message) error {
	if !p.app.ledger.isReturnTopic(topic) {
		for _, msg := range messages {
			p.app.ledger.published(topic, msg)
		}
	}
	return p.app.pubSub.Publish(topic, messages...)
}

func (transport) Close() error { return nil }

// producer is what the app publishes with.
type producer struct{ app *App }

func (p producer) Publish(topic string, messages ...*message.Message) error {
	p.app.ledger.produced(topic, messages)
	return transport(p).Publish(topic, messages...)
}

func (producer) Close() error { return nil }

// failures is what the middleware publishes with. The messages have the context values of the deliveries that failed.
type failures struct {
	message.Publisher
	ledger *ledger
}

func (p failures) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if v := visitOf(msg); v != nil { // before the copy can be back
			p.ledger.failed(v, topic, msg)
		}
	}
	return p.Publisher.Publish(topic, messages...)
}
