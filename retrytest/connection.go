package retrytest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// AddConsumerHandler adds a handler with retries to Router, or to a router for Run. Add the app's other middlewares to
// the handler that it returns.
//
// The handlers of one topic and one Options.Group share the topic's messages and their retries, as on RabbitMQ, and so
// do the handlers of a topic without a group. Handlers of different groups each get every message. Any Concurrency and
// OrderKey are accepted and have no effect: all messages of a handler are in flight together, but while it is paused or
// limited by its breaker.
//
// Wrong options end the test, so it must be called from the test's goroutine.
func (a *App) AddConsumerHandler(
	router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...retry.Options,
) *message.Handler {
	a.t.Helper()
	subscriber := a.handlerSubscriber(name, handler == nil, options)
	added := router.AddConsumerHandler(name, topic, subscriber, handler)
	added.AddMiddleware(a.Middleware)
	return added
}

// AddHandler is AddConsumerHandler for handlers that produce messages. The produced messages are published to
// publishTopic, where other handlers may get them. Produced returns them.
func (a *App) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
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

// Subscriber makes a subscriber for code that adds handlers by itself. It has the groups of AddConsumerHandler. Add
// Middleware to its handlers.
func (a *App) Subscriber(name string, options ...retry.Options) (message.Subscriber, error) {
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
		tiered, err = a.newRetry(*o.Policy)
	}
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", name, err)
	}
	s := &subscriber{app: a, group: o.Group, name: name}
	s.ctx, s.end = context.WithCancel(a.ctx)
	s.binding = &msgctx.Subscription{Owner: a, Retry: tiered, Gate: a.gates.Add(name, 1), Stopping: s.ctx.Done()}
	return s, nil
}

// newRetry makes the retry middleware of a handler, and its tiers.
func (a *App) newRetry(policy retry.Policy) (*middleware.TieredRetry, error) {
	if err := a.checkTime(policy.Schedule); err != nil {
		return nil, err
	}
	return middleware.New(policy, appBackend{a}, a.config.Logger)
}

// Middleware is the retry middleware for handlers with a subscriber of this App, for a handler's or a router's
// AddMiddleware.
func (a *App) Middleware(h message.HandlerFunc) message.HandlerFunc { return a.retry.Dispatch(h) }

// Publisher publishes into the app's Pub/Sub. Produced returns its messages.
func (a *App) Publisher() message.Publisher { return appPublisher{a} }

// Pause makes a handler take no new messages, until Resume. They stay in the queue, in their order, and other handlers
// of the group get them. Send waits for messages of a paused handler for as long as Config.Patience: resume it in the
// handler of another message, or with time.AfterFunc. It returns an error for an unknown name, which lists the names.
// It may be called from any goroutine.
func (a *App) Pause(handler string) error { return a.gates.Pause(handler) }

// Resume ends a Pause. A handler that is not paused is no error.
func (a *App) Resume(handler string) error { return a.gates.Resume(handler) }

// Observe attaches observers, such as those of package observe, to the app's handlers. Their errors go to
// Config.Logger.
func (a *App) Observe(observers ...retry.Observer) {
	for _, o := range observers {
		a.observers.Attach(o, retry.Observed{System: "retrytest", Health: a.Health, Logger: a.config.Logger,
			Closed: a.ctx.Done()})
	}
}

// Health returns the state of the handlers' subscriptions. There are no links.
func (a *App) Health() retry.Health {
	h := retry.Health{Subscriptions: a.health.Health()}
	for i, s := range h.Subscriptions {
		at := &h.Subscriptions[i]
		at.Paused, at.PausedSince, at.PausedLimit, at.Holding = a.gates.State(s.Name)
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
