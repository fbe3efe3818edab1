package retrytest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	bubblePatience = time.Hour
	realPatience   = 30 * time.Second

	// maxRealTime is the longest total of a schedule outside of a bubble.
	maxRealTime = 10 * time.Second

	// Due times are rounded up to whole milliseconds. In real time the machine may be busy.
	bubbleLateness = 2 * time.Millisecond
	realLateness   = 500 * time.Millisecond
)

// Config configures NewWithConfig.
type Config struct {
	// Policy is that of all handlers without one of their own. Its Schedule is required. With a Jitter, the stories
	// have the delays that were chosen at random, and the assertions of a Story take the shortest ones.
	Policy retry.Policy

	// TiersWait makes messages wait for whole tiers, as on RabbitMQ: a requested delay takes rounds, and is longer by
	// less than the shortest tier. Set it where a test depends on that, and for the rounds in the stories. The default
	// is to wait exactly, as on package relay.
	TiersWait bool

	// Patience is how long Send waits for the next event of a message, or of another message of its handler: the
	// handler returns, or a due retry is delivered. Then it ends the test. The default is one hour in a bubble, which
	// takes no real time, and 30 seconds outside of a bubble.
	Patience time.Duration

	// Logger is the logger of the router and the middleware. The default is none.
	Logger watermill.LoggerAdapter
}

// App is an app under test: a router, and a Connection to a Pub/Sub in memory. The app's own function adds its handlers
// to the Connection as in production. Send and the other methods that are not the Connection's must be called from the
// test's goroutine.
//
// The methods of the retry.Connection are documented there. What they do here:
//
//   - AddConsumerHandler, AddHandler: add the handler to Router, or to a router for Run. Wrong options end the test, so
//     they must be called from the test's goroutine. The handlers of one topic and one Options.Group share the topic's
//     messages and their retries, as on RabbitMQ, and so do the handlers of a topic without a group. Handlers of
//     different groups each get every message. Any Concurrency, Prefetch and Order are accepted and have no effect:
//     all messages of a handler are in flight together, but while it is paused or limited by its breaker.
//   - Subscriber: it has the groups of AddConsumerHandler.
//   - Publisher: Produced returns its messages.
//   - Pause: the messages stay in the queue, in their order, and other handlers of the group get them. Send waits for
//     messages of a paused handler for as long as Config.Patience: resume it in the handler of another message, or with
//     time.AfterFunc.
//   - Health has no links.
//   - Close closes the routers. The test calls it at its end. A handler that still runs is an error.
type App struct {
	retry.Connection

	// Router is a router with the default configuration. Add handlers to it, or let the app's own function add them.
	// The first Send runs it. It is closed when the test ends.
	Router *message.Router

	t        testing.TB
	config   Config
	bubble   bool
	patience time.Duration
	lateness time.Duration

	ledger    *ledger
	health    subscriptions.List
	gates     gate.Handlers
	source    *backend.Source
	observers backend.Observers
	retry     *middleware.TieredRetry // the middleware with Config.Policy
	ctx       context.Context         // the context of all subscriptions
	stop      context.CancelFunc
	closed    chan struct{}
	started   bool
	running   []running

	closing  sync.Once
	closeErr error
}

// running is a router that runs.
type running struct {
	router  *message.Router
	stopped chan error // what Run returned
}

// New makes an app that retries failed messages by this schedule. The app is closed when the test ends. An invalid
// schedule ends the test.
func New(t testing.TB, schedule backoff.Schedule) *App {
	t.Helper()
	return NewWithConfig(t, Config{Policy: retry.Policy{Schedule: schedule}})
}

// NewWithConfig makes an app with a configuration. An invalid configuration ends the test.
func NewWithConfig(t testing.TB, config Config) *App {
	t.Helper()
	bubble := inBubble()
	if err := faults.In("retrytest: Config.Policy", config.Policy.Validate()); err != nil {
		t.Fatalf("%v", err)
	}
	if config.Patience < 0 {
		t.Fatalf("retrytest: Config.Patience is %v: it must be 0 (the default) or more", config.Patience)
	}

	a := &App{
		t: t, config: config, bubble: bubble, patience: bubblePatience, lateness: bubbleLateness,
		ledger: newLedger(), closed: make(chan struct{}), Router: message.NewDefaultRouter(config.Logger),
	}
	if !bubble {
		a.patience, a.lateness = realPatience, realLateness
	}
	if config.Patience > 0 {
		a.patience = config.Patience
	}
	a.Connection = connection{a}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.source = &backend.Source{
		Owner: a, Name: "retrytest.App",
		Subscribe: "add its handler with App.AddConsumerHandler or App.AddHandler, or give it the subscriber of " +
			"App.Subscriber",
	}
	a.Observe(recorder{ledger: a.ledger})
	var err error
	if a.retry, err = a.newRetry(config.Policy, false); err != nil {
		t.Fatalf("retrytest: %v", err)
	}
	a.Router.AddMiddleware(a.observeHandler(true))
	t.Cleanup(func() {
		t.Helper()
		if err := a.Close(); err != nil {
			t.Errorf("retrytest: %v", err)
		}
	})
	return a
}

// checkTime refuses a schedule that takes too much real time.
func (a *App) checkTime(schedule backoff.Schedule) error {
	total := time.Duration(0)
	for _, delay := range schedule {
		total = min(total, math.MaxInt64-delay) + delay
	}
	if a.bubble || total <= maxRealTime {
		return nil
	}
	return fmt.Errorf("outside of a synctest bubble this schedule takes %s of real time, more than %s: run the test "+
		"inside synctest.Test(t, func(t *testing.T) { ... })", timeText(total), timeText(maxRealTime))
}

// checkBubble refuses the use of an App in a bubble that it was not made in.
func (a *App) checkBubble() error {
	if a.bubble || !inBubble() {
		return nil
	}
	return errors.New("the App was made outside of synctest.Test and is used inside, where it would hang: call New " +
		"inside of synctest.Test, with the t of its function")
}

// Send publishes a message, waits until all messages are finished, and returns the story of the message. It also waits
// for retries and for the messages that handlers produce. It ends the test if no handler is subscribed to the topic, or
// if a message has no event for as long as Config.Patience.
func (a *App) Send(topic string, msg *message.Message) *Story {
	a.t.Helper()
	return a.SendAll(topic, msg)[0]
}

// SendAll is Send for several messages, which are published together. The stories are in the order of the messages.
func (a *App) SendAll(topic string, messages ...*message.Message) []*Story {
	a.t.Helper()
	a.start()
	if topics := a.ledger.topicsWithHandlers(); !topics[topic] {
		a.t.Fatalf("retrytest: no handler is subscribed to %q; topics with a handler: %s; for handlers on a router "+
			"of your own call app.Run(router) before", topic, quotedNames(topics))
	}
	entries := make([]*entry, len(messages))
	for i, msg := range messages {
		entries[i] = a.publish(topic, msg)
	}
	if problem, of := a.ledger.waitForMessages(a.patience); of != nil {
		a.t.Fatalf("retrytest: %s\n%v", problem, a.ledger.story(a, of))
	}
	stories := make([]*Story, len(messages))
	for i, e := range entries {
		stories[i] = a.ledger.story(a, e)
	}
	return stories
}

// Produced returns the messages of a topic that handlers have produced or that Publisher has published, oldest first.
func (a *App) Produced(topic string) []*message.Message {
	return a.ledger.producedMessages(topic)
}

// Stories returns the stories of all messages that were published to a topic with a handler, oldest first: messages
// that were sent, that handlers have produced and that Publisher has published.
func (a *App) Stories(topic string) []*Story {
	return a.ledger.stories(a, topic)
}

// Run runs a router that the app's own constructor has made, until the test ends. Field Router needs no call of Run.
func (a *App) Run(router *message.Router) {
	a.t.Helper()
	a.start()
	router.AddMiddleware(a.observeHandler(false))
	a.run(router)
}

// start runs the routers and handlers that do not run yet. Handlers may be added between two calls of Send.
func (a *App) start() {
	a.t.Helper()
	if err := a.checkBubble(); err != nil {
		a.t.Fatalf("retrytest: %v", err)
	}
	if a.ctx.Err() != nil {
		a.t.Fatalf("retrytest: the app is closed")
	}
	if !a.started {
		a.started = true
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
	a.running = append(a.running, running{router, stopped}) // Close also ends a router whose Run has failed
	go func() {
		stopped <- router.Run(context.Background())
		close(stopped)
	}()
	select {
	case <-router.Running():
	case err := <-stopped:
		a.t.Fatalf("retrytest: the router does not run: %v", err)
	}
}

// endUnstarted starts and ends the handlers that were not started: the router's Close would wait for them.
func (a *App) endUnstarted(router *message.Router) {
	router.AddSubscriberDecorators(func(message.Subscriber) (message.Subscriber, error) {
		return endedSubscriber{}, nil
	})
	_ = router.RunHandlers(a.ctx) // a decorator of the app can fail again
}

// close ends every goroutine. The handlers must have returned before the router closes, and before the last
// subscription ends, which closes it: the router holds a lock while it waits for them, and the time of a bubble stops
// while a goroutine waits for a lock.
func (a *App) close() error {
	var faults []error
	a.stop()
	if a.bubble {
		synctest.Wait() // messages that were being delivered have reached their handlers
	}
	if handler := a.ledger.waitForHandlers(a.patience); handler != "" {
		faults = append(faults, fmt.Errorf("the test is over, but handler %q has not returned %s after the context "+
			"of its message ended: a handler must return when its context ends", handler, timeText(a.patience)))
		// synctest panics if a goroutine of the bubble remains. To wait longer takes no real time.
		if !a.bubble || a.ledger.waitForHandlers(backoff.MaxDelay) != "" {
			return errors.Join(faults...)
		}
	}
	close(a.closed)
	for _, r := range slices.Backward(a.running) {
		a.endUnstarted(r.router)
		if err := r.router.Close(); err != nil {
			faults = append(faults, fmt.Errorf("cannot close the router: %w", err))
		}
		<-r.stopped
	}
	return errors.Join(faults...)
}

// quotedNames returns the names in quotes, sorted.
func quotedNames(names map[string]bool) string {
	if len(names) == 0 {
		return "none"
	}
	var quoted []string
	for name := range names {
		quoted = append(quoted, strconv.Quote(name))
	}
	slices.Sort(quoted)
	return strings.Join(quoted, ", ")
}

// inBubble reports whether it is called in a synctest bubble. Outside of a bubble synctest.Wait panics: there is no
// function that reports it.
func inBubble() (bubble bool) {
	defer func() { bubble = recover() == nil }()
	synctest.Wait()
	return true
}
