package retrytest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

const (
	bubblePatience = time.Hour
	realPatience   = 30 * time.Second

	// mostRealTime is the longest schedule that is waited for in real time unasked.
	mostRealTime = 10 * time.Second

	// The relay rounds due times up to whole milliseconds; in real time the machine may be busy.
	bubbleLateness = 2 * time.Millisecond
	realLateness   = 500 * time.Millisecond
)

// Config configures NewWithConfig.
type Config struct {
	// Schedule is the delay before each retry. Required.
	Schedule backoff.Schedule

	// Middleware changes the configuration of the retry middleware, as the app does: hooks, RedactReason, and so on. Publisher,
	// Schedule and GenerateRetryDestination are set again after it. Optional.
	Middleware func(*middleware.TieredRetryConfig)

	// Patience is how long Send waits for anything to happen to a message: for its handler to return, or for a retry that is due
	// to come back. After it the test fails. The default is one hour in a bubble, which takes no time, and else 30 seconds.
	Patience time.Duration

	// RealTime allows a schedule that takes more than 10 seconds outside a bubble.
	RealTime bool

	// Logger gets what router, relay and middleware log. The default is none.
	Logger watermill.LoggerAdapter
}

// App is an app under test: a router, a Pub/Sub in memory with retry tiers, and the retry middleware. Its methods are called
// from the test's goroutine.
type App struct {
	// Router is a router with default configuration. Add handlers to it, or let the app's own function add them; the first Send
	// runs it, and the end of the test closes it.
	Router *message.Router

	// Retry is the retry middleware, for handlers that are not added with the App's own methods.
	Retry *middleware.TieredRetry

	// Relay is for apps that add their handlers with the relay's AddConsumerHandler or AddHandler.
	Relay *relay.Relay

	// Publisher publishes into the app's Pub/Sub. What goes through it is in Produced.
	Publisher message.Publisher

	t        testing.TB
	bubble   bool
	patience time.Duration
	lateness time.Duration

	ledger  *ledger
	pubSub  *gochannel.GoChannel
	tiers   *message.Router // keeps the relay's tiers running
	ctx     context.Context // of all subscriptions
	stop    context.CancelFunc
	closed  chan struct{}
	started bool
	groups  int
	running []running
}

// running is a router that runs.
type running struct {
	router  *message.Router
	stopped chan error // what Run returned
}

// New makes an app whose failed messages are retried by this schedule. It is closed when the test ends.
func New(t testing.TB, schedule backoff.Schedule) *App {
	t.Helper()
	return NewWithConfig(t, Config{Schedule: schedule})
}

// NewWithConfig is New with more to say. A configuration that is not valid fails the test.
func NewWithConfig(t testing.TB, config Config) *App {
	t.Helper()
	bubble := inBubble()
	if err := config.Schedule.Validate(); err != nil {
		t.Fatalf("retrytest: Config.Schedule: %v", err)
	}
	if config.Patience < 0 {
		t.Fatalf("retrytest: Config.Patience is %v: it must be 0 (the default) or more", config.Patience)
	}
	if total := Simulate(config.Schedule).DeadLetterAt; !bubble && !config.RealTime && total > mostRealTime {
		t.Fatalf("retrytest: not in a synctest bubble, where this schedule takes %s of real time: run the test inside "+
			"synctest.Test(t, func(t *testing.T) { ... }), or set Config.RealTime", brief(total))
	}

	a := &App{
		t: t, bubble: bubble, patience: bubblePatience, lateness: bubbleLateness, ledger: newLedger(), closed: make(chan struct{}),
		pubSub: gochannel.NewGoChannel(gochannel.Config{}, config.Logger),
		tiers:  message.NewDefaultRouter(config.Logger),
		Router: message.NewDefaultRouter(config.Logger),
	}
	if !bubble {
		a.patience, a.lateness = realPatience, realLateness
	}
	if config.Patience > 0 {
		a.patience = config.Patience
	}
	a.Publisher = producer{a}
	a.ctx, a.stop = context.WithCancel(context.Background())
	if err := a.build(config); err != nil {
		t.Fatalf("retrytest: %v", err)
	}
	a.Router.AddMiddleware(a.observe(true))
	t.Cleanup(a.close)
	return a
}

// build makes relay and middleware as an app makes them.
func (a *App) build(config Config) (err error) {
	a.Relay, err = relay.New(relay.Config{
		Publisher: transport{a},
		Schedule:  config.Schedule,
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) {
			return openSubscriber{a.pubSub}, nil
		},
		MaxHop:        backoff.MaxDelay, // this Pub/Sub has no redelivery limit
		GenerateTopic: a.ledger.relayTopic,
	}, config.Logger)
	if err != nil {
		return err
	}
	a.Relay.AddConsumerHandler(a.tiers, internalName, internalName, openSubscriber{a.pubSub}, func(*message.Message) error { return nil })

	retry := a.TieredRetryConfig()
	if config.Middleware != nil {
		config.Middleware(&retry)
	}
	set := a.TieredRetryConfig()
	retry.Publisher, retry.Schedule, retry.GenerateRetryDestination = set.Publisher, set.Schedule, set.GenerateRetryDestination
	a.ledger.hook(&retry)
	a.Retry, err = middleware.NewTieredRetry(retry, config.Logger)
	return err
}

// TieredRetryConfig is the configuration of the retry middleware, for apps that make it themselves, with hooks of their own.
// Config.Middleware has no part in it.
func (a *App) TieredRetryConfig() middleware.TieredRetryConfig {
	config := a.Relay.TieredRetryConfig()
	config.Publisher = failures{config.Publisher, a.ledger}
	config.GenerateRetryDestination = func(p middleware.RetryDestinationParams) (middleware.Destination, error) {
		return middleware.Destination{Topic: tierTopic(p.Tier)}, nil
	}
	return config
}

// AddConsumerHandler adds a handler with the retry middleware to the router, in a consumer group of its own: it gets every
// message of its topic. Add the app's other middlewares to what it returns.
func (a *App) AddConsumerHandler(name, topic string, handler message.NoPublishHandlerFunc) *message.Handler {
	added := a.Router.AddConsumerHandler(name, topic, a.NewSubscriber(), handler)
	added.AddMiddleware(a.Retry.Middleware)
	return added
}

// AddHandler is AddConsumerHandler for handlers that produce messages. They are published to publishTopic, where other
// handlers may get them, and are in Produced.
func (a *App) AddHandler(name, subscribeTopic, publishTopic string, handler message.HandlerFunc) *message.Handler {
	added := a.Router.AddHandler(name, subscribeTopic, a.NewSubscriber(), publishTopic, a.Publisher, handler)
	added.AddMiddleware(a.Retry.Middleware)
	return added
}

// NewSubscriber makes a subscriber for handlers that the app's own function adds to Router. It is a consumer group: handlers
// that use it on one topic share that topic's messages and their retries, as on one queue of RabbitMQ, and each subscriber
// gets every message.
func (a *App) NewSubscriber() message.Subscriber {
	a.groups++
	return &group{app: a, name: fmt.Sprintf("group-%d", a.groups), queues: map[string]*queue{}}
}

// Send publishes a message, waits until the app has nothing left to do, and tells what became of it. Retries, and messages
// that handlers produce on the way, are waited for, too. A message that nobody subscribes, or to which nothing happens for
// Config.Patience, fails the test at once.
func (a *App) Send(topic string, msg *message.Message) *Story {
	a.t.Helper()
	return a.SendAll(topic, msg)[0]
}

// SendAll is Send for messages that are in the app together. The stories are in the order of the messages.
func (a *App) SendAll(topic string, messages ...*message.Message) []*Story {
	a.t.Helper()
	a.start()
	if topics := a.ledger.topics(); !topics[topic] {
		a.t.Fatalf("retrytest: no handler is subscribed to %q; topics with a handler: %s", topic, list(topics))
	}
	letters := make([]*letter, len(messages))
	for i, msg := range messages {
		letters[i] = a.ledger.published(topic, msg)
		if err := a.pubSub.Publish(topic, msg); err != nil {
			a.t.Fatalf("retrytest: cannot publish to %q: %v", topic, err)
		}
	}
	if trouble, stuck := a.ledger.wait(a.patience); stuck != nil {
		a.t.Fatalf("retrytest: %s\n%v", trouble, a.ledger.story(a, stuck))
	}
	stories := make([]*Story, len(messages))
	for i, l := range letters {
		stories[i] = a.ledger.story(a, l)
	}
	return stories
}

// Produced returns the messages that were published to a topic by handlers, or else through Publisher, oldest first.
func (a *App) Produced(topic string) []*message.Message {
	return a.ledger.producedTo(topic)
}

// Stories tells what became of all messages of a topic that had a handler, those that were sent and those that handlers
// produced, oldest first.
func (a *App) Stories(topic string) []*Story {
	return a.ledger.stories(a, topic)
}

// Run runs a router that the app's own constructor has made, with handlers that use NewSubscriber, until the test ends. Router
// needs no Run.
func (a *App) Run(router *message.Router) {
	a.t.Helper()
	a.start()
	router.AddMiddleware(a.observe(false))
	a.run(router)
}

// start runs what does not run yet: handlers may be added between one Send and the next.
func (a *App) start() {
	a.t.Helper()
	if !a.started {
		a.started = true
		a.run(a.tiers)
		a.run(a.Router)
	}
	for _, r := range a.running {
		if err := r.router.RunHandlers(a.ctx); err != nil {
			a.t.Fatalf("retrytest: cannot run the handlers: %v", err)
		}
	}
}

func (a *App) run(router *message.Router) {
	a.t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
		a.running = append(a.running, running{router, stopped})
	case err := <-stopped:
		a.t.Fatalf("retrytest: the router does not run: %v", err)
	}
}

// close ends every goroutine. Handlers have to be done before the router closes: it holds a lock while it waits for them, and
// behind a lock a bubble's clock stands still.
func (a *App) close() {
	a.t.Helper()
	a.stop()
	if a.bubble {
		synctest.Wait() // what was on its way to a handler is there
	}
	if busy := a.ledger.rest(a.patience); busy != "" {
		a.t.Errorf("retrytest: the test is over, and handler %q still does not return, %s after the context of its message has ended",
			busy, brief(a.patience))
		// In a bubble waiting takes no time, and whoever leaves a goroutine there gets a panic for it.
		if !a.bubble || a.ledger.rest(backoff.MaxDelay) != "" {
			return
		}
	}
	close(a.closed)
	for _, r := range slices.Backward(a.running) {
		if err := r.router.Close(); err != nil {
			a.t.Errorf("retrytest: cannot close the router: %v", err)
		}
		<-r.stopped
	}
	if err := a.Relay.Close(); err != nil {
		a.t.Errorf("retrytest: cannot close the relay: %v", err)
	}
	if err := a.pubSub.Close(); err != nil {
		a.t.Errorf("retrytest: cannot close the Pub/Sub: %v", err)
	}
}

// inBubble asks in the only way there is: Wait panics outside of one.
func inBubble() (bubble bool) {
	defer func() { bubble = recover() == nil }()
	synctest.Wait()
	return true
}
