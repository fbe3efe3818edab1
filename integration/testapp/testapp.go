// Package testapp is the fixture of the integration tests: an app with names of its own, whose messages are counted by
// identity. New makes it on Connect, NewParts with the builder on watermill-amqp's subscriber.
package testapp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = time.Minute // much longer than any of the events takes

// Delays are the schedule of an app.
var Delays = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond}

// ErrDown is the failure of a handler whose dependency is down.
var ErrDown = errors.New("the bank is down")

// An App is a router with handlers on a Connection.
type App struct {
	Base
	retry.Connection
}

// New returns a connected app whose router does not run yet.
func New(t testing.TB, change ...func(*config.Config)) *App {
	t.Helper()
	return Connect(t, Config(t, change...))
}

// Connect is New with a configuration whose Prefix is the app's name. Several apps can share it.
func Connect(t testing.TB, c config.Config) *App {
	t.Helper()
	a := &App{Base: newBase(t, c)}
	var err error
	a.Connection, err = config.Connect(c, a.Log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	a.Observe(eventtest.OnEvent(a.observe))
	return a
}

// Handle adds a handler with retries on a queue, which is also its name.
func (a *App) Handle(queue string, concurrency int, h message.NoPublishHandlerFunc) {
	a.AddConsumerHandler(a.Router, queue, queue, h, retry.Options{Concurrency: concurrency})
}

// Publish publishes messages with these UUIDs to a queue.
func (a *App) Publish(queue string, uuids ...string) {
	a.t.Helper()
	require.NoError(a.t, a.Publisher().Publish(queue, Messages(uuids...)...))
}

// Config returns a configuration with names that no other test uses, and one queue for each topic.
func Config(t testing.TB, change ...func(*config.Config)) config.Config {
	t.Helper()
	name := broker.Name(t, "t")
	broker.Clean(t, name)
	c := config.Config{
		AMQP:     amqp.NewDurableQueueConfig(broker.URL(t)),
		Policy:   retry.Policy{Schedule: Delays},
		Settings: rabbitmq.Settings{Prefix: name},
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// Schedule changes the schedule of a configuration.
func Schedule(delays ...time.Duration) func(*config.Config) {
	return func(c *config.Config) { c.Policy.Schedule = delays }
}

// FanOut gives each topic an exchange. Each handler needs a Group.
func FanOut(c *config.Config) {
	c.AMQP = amqp.NewDurablePubSubConfig(c.AMQP.Connection.AmqpURI, nil)
}

// Base is what all apps have.
type Base struct {
	Name   string // the prefix, and the unique part of all names
	Router *message.Router
	Log    *Log
	Stop   func() // closes the router, which Run has started; the end of the test calls it too

	t      testing.TB
	config config.Config
	mu     sync.Mutex
	events []retry.Event
}

func newBase(t testing.TB, c config.Config) Base {
	log := &Log{}
	return Base{Name: c.Prefix, Router: message.NewDefaultRouter(log), Log: log, t: t, config: c}
}

func (b *Base) observe(e retry.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

// Events returns the events of an outcome until now.
func (b *Base) Events(outcome retry.Outcome) []retry.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.events), func(e retry.Event) bool { return e.Outcome != outcome })
}

// Queue returns a name that only this app uses: of a topic, and of its work queue.
func (b *Base) Queue(base string) string { return base + "_" + b.Name }

// TierQueue returns the name of a work queue's own tier.
func (b *Base) TierQueue(queue string, tier time.Duration) string {
	return queue + "." + b.Name + "." + backoff.Tier(tier).String()
}

// Topology returns the topology of a topic.
func (b *Base) Topology(topic string) topology.Topology {
	b.t.Helper()
	builder, err := config.NewBuilder(b.config)
	require.NoError(b.t, err)
	return builder.Topology(topic)
}

// Declare declares the topology of topics before there is a subscriber.
func (b *Base) Declare(topics ...string) {
	b.t.Helper()
	for _, topic := range topics {
		broker.Declare(b.t, b.Topology(topic).Declare)
	}
}

// Run starts the router. The end of the test closes it, before the connection.
func (b *Base) Run() {
	b.t.Helper()
	b.Stop = sync.OnceFunc(Start(b.t, b.Router))
	b.t.Cleanup(b.Stop)
}

// Settle waits until queues and their tiers are empty, so that all duplicates have arrived.
func (b *Base) Settle(queues ...string) {
	b.t.Helper()
	for _, queue := range queues {
		t := b.Topology(queue)
		Eventually(b.t, func() bool {
			for _, q := range append(t.Queues, t.WorkQueue) {
				if q.Name != t.DeadLetterQueue() && q.Name != b.Name+".orphans" && Depth(b.t, q.Name) > 0 {
					return false
				}
			}
			return true
		}, "the queue and its tiers are empty")
	}
}

// Eventually waits for an event.
func Eventually(t testing.TB, happened func() bool, what string, args ...any) {
	t.Helper()
	broker.Eventually(t, soon, happened, what, args...)
}

// A Runnable is a router, or a component with one of its own.
type Runnable interface {
	Run(ctx context.Context) error
	Running() chan struct{}
	Close() error
}

// Start starts a router and waits until it runs. Call stop once, before the test ends.
func Start(t testing.TB, r Runnable) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.Run(context.Background()) }()
	patience := broker.NewPatience(soon)
	defer patience.Check.Stop()
	for running := false; !running; {
		select {
		case <-r.Running():
			running = true
		case err := <-done:
			require.NoError(t, err)
			t.Fatal("the router stopped before it was running")
		case <-patience.Check.C:
			require.False(t, patience.Over(), "the router does not start, and nothing moves on the broker")
		}
	}
	return func() {
		require.NoError(t, r.Close())
		require.NoError(t, <-done)
	}
}
