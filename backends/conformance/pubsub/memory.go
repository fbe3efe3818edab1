package pubsub

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// gochannelServer is Watermill's gochannel. It keeps nothing over a restart, and drops a message whose topic has no
// subscription, dead letters included. Each subscription is a consumer group of its own.
type gochannelServer struct {
	channel openChannel
	logger  watermill.LoggerAdapter
	waiting *waiters
}

func memory(_ string, logger watermill.LoggerAdapter) Backend {
	channel := gochannel.NewGoChannel(gochannel.Config{}, logger)
	return gochannelServer{openChannel{channel, channel}, logger, &waiters{}}
}

// openChannel stays open: closing it would end the publishers and subscribers of all others.
type openChannel struct {
	message.Publisher
	message.Subscriber
}

func (openChannel) Close() error { return nil }

// Publisher implements Backend.
func (g gochannelServer) Publisher() (message.Publisher, error) { return g.channel, nil }

// Connect implements Backend.
func (g gochannelServer) Connect(app App) (retry.Connection, error) {
	c, err := relay.Connect(relay.Config{
		Publisher: g.channel, Policy: app.Policy, Prefix: app.Prefix,
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return g.channel, nil },
	}, g.logger)
	if err == nil {
		c.Observe(waiterOf{all: g.waiting, prefix: app.Prefix})
	}
	return c, err
}

// Letters implements Backend.
func (gochannelServer) Letters(App) (letters.Store, error) {
	return nil, fmt.Errorf("%w: gochannel keeps no message", ErrNoLetters)
}

// DeadLetters implements DeadSubscriber.
func (g gochannelServer) DeadLetters() message.Subscriber { return g.channel }

// DeadTopic implements Backend.
func (gochannelServer) DeadTopic(app App, handler, _ string) string {
	return relaytopic.Names{Prefix: app.Prefix}.Dead(relaytopic.Key(handler, ""))
}

// Left implements Backend. There is no server: what waits is kept by the relay, in this process.
func (g gochannelServer) Left(ctx context.Context, app App, _ []string) (left int, err error) {
	for _, waiter := range g.waiting.of(app.Prefix) {
		all, err := waiter(ctx)
		if err != nil {
			return 0, err
		}
		for _, one := range all {
			left += one.Messages
		}
	}
	return left, nil
}

// waiters are what shows the waiting messages of each Connection, by their prefix.
type waiters struct {
	mu  sync.Mutex
	all map[string][]backend.Waiter
}

func (w *waiters) add(prefix string, waiter backend.Waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[string][]backend.Waiter{}
	}
	w.all[prefix] = append(w.all[prefix], waiter)
}

func (w *waiters) of(prefix string) []backend.Waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[prefix]
}

// waiterOf is the observer of a Connection that remembers its Waiter.
type waiterOf struct {
	backend.NopObserver
	all    *waiters
	prefix string
}

func (w waiterOf) Attach(o backend.Observed) (backend.Observer, error) {
	if o.Waiting != nil {
		w.all.add(w.prefix, o.Waiting)
	}
	return nil, nil
}
