package retrytest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

// connection is the retry.Connection of an App.
type connection struct{ *App }

// Close implements retry.Connection.
func (a connection) Close() error {
	a.closing.Do(func() { a.closeErr = a.close() })
	return a.closeErr
}

// AddConsumerHandler implements retry.Connection.
func (a connection) AddConsumerHandler(
	router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...retry.Options,
) *message.Handler {
	faults.CheckRouter(name, router == nil)
	a.t.Helper()
	subscriber := a.handlerSubscriber(name, handler == nil, options)
	added := router.AddConsumerHandler(name, topic, subscriber, handler)
	added.AddMiddleware(a.Middleware)
	return added
}

// AddHandler implements retry.Connection.
func (a connection) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
	faults.CheckRouter(name, router == nil)
	a.t.Helper()
	subscriber := a.handlerSubscriber(name, handler == nil, options)
	added := router.AddHandler(name, subscribeTopic, subscriber, publishTopic, a.Publisher(), handler)
	added.AddMiddleware(a.Middleware)
	return added
}

// handlerSubscriber returns the subscriber of a handler. Wrong options, and a handler without a function, end the test.
func (a *App) handlerSubscriber(name string, isNil bool, options []retry.Options) message.Subscriber {
	a.t.Helper()
	if isNil {
		a.t.Fatalf("retrytest: handler %q: its function is nil: pass the function that handles its messages", name)
	}
	s, err := a.subscriber(name, options)
	if err != nil {
		a.t.Fatalf("retrytest: %v", err)
	}
	s.isHandler = true
	return s
}

// Subscriber implements retry.Connection.
func (a connection) Subscriber(name string, options ...retry.Options) (message.Subscriber, error) {
	s, err := a.subscriber(name, options)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (a *App) subscriber(name string, given []retry.Options) (*subscriber, error) {
	if err := a.checkBubble(); err != nil {
		return nil, err
	}
	o, err := options.One(given, &a.config.Policy)
	if name == "" {
		err = errors.Join(err, errors.New("the name is empty: give it a name"))
	}
	var tiered *middleware.TieredRetry
	if err == nil {
		tiered, err = a.newRetry(*o.Policy, o.Order.Block)
	}
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", name, err)
	}
	s := &subscriber{app: a, group: o.Group, name: name, retry: tiered}
	s.ctx, s.end = context.WithCancel(a.ctx)
	s.binding = &msgctx.Subscription{Owner: a, Retry: tiered, Gate: a.gates.Add(name, 1), Stopping: s.ctx.Done()}
	return s, nil
}

// newRetry makes the retry middleware of a handler, and its tiers.
func (a *App) newRetry(policy retry.Policy, blocks bool) (*middleware.TieredRetry, error) {
	if err := a.checkTime(policy.Schedule); err != nil {
		return nil, err
	}
	return middleware.New(policy, appBackend{a, blocks}, a.config.Logger)
}

// Middleware implements retry.Connection.
func (a connection) Middleware(h message.HandlerFunc) message.HandlerFunc { return a.retry.Dispatch(h) }

// Publisher implements retry.Connection.
func (a connection) Publisher() message.Publisher { return appPublisher{a.App} }

// Pause implements retry.Connection.
func (a connection) Pause(handler string) error { return a.gates.Pause(handler) }

// Resume implements retry.Connection.
func (a connection) Resume(handler string) error { return a.gates.Resume(handler) }

// Observe implements retry.Connection.
func (a connection) Observe(observers ...retry.Observer) {
	for _, o := range observers {
		a.observers.Attach(o, backend.Observed{System: "retrytest", Health: a.Health, Logger: a.config.Logger,
			Closed: a.ctx.Done()})
	}
}

// Health implements retry.Connection.
func (a connection) Health() retry.Health {
	h := retry.Health{Subscriptions: a.health.Health()}
	for i := range h.Subscriptions {
		subscriptions.Describe(&h.Subscriptions[i], &a.gates)
	}
	return h
}

// endedSubscriber takes the place of the subscriber of a handler that did not start.
type endedSubscriber struct{}

func (endedSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	ended := make(chan *message.Message)
	close(ended)
	return ended, nil
}

func (endedSubscriber) Close() error { return nil }
