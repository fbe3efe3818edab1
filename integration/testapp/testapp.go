// Package testapp builds complete apps for the integration tests: a router on watermill-amqp with the middleware and
// the builder. It counts their messages by identity.
package testapp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// App is a router with its retries. Its queues and exchanges have names that no other test uses.
type App struct {
	t       testing.TB
	Name    string // the unique part of all names
	Builder *config.Builder
	Retry   *middleware.TieredRetry
	Router  *message.Router
	Log     *Log

	Mu      sync.Mutex // guards the events
	Retries []retry.Event
	Parks   []retry.Event
	Deaths  []retry.Event
}

// Delays are the schedule of the apps of New.
var Delays = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond}

// New returns an app that does not run yet.
func New(t testing.TB, change ...func(*config.Config)) *App {
	t.Helper()
	a := &App{t: t, Name: broker.Name(t, "t"), Log: &Log{}}
	broker.Clean(t, a.Name)
	b := config.Config{
		AMQP:     amqp.NewDurableQueueConfig(broker.URL(t)),
		Policy:   retry.Policy{Schedule: Delays},
		Settings: rabbitmq.Settings{Prefix: a.Name},
	}
	for _, c := range change {
		c(&b)
	}
	var err error
	a.Builder, err = config.NewBuilder(b)
	require.NoError(t, err)
	a.Builder.Observe(eventtest.OnEvent(a.observe))
	a.Retry, err = a.Builder.NewTieredRetry(a.Log)
	require.NoError(t, err)
	a.Router = message.NewDefaultRouter(a.Log)
	return a
}

func (a *App) observe(e retry.Event) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	switch e.Outcome {
	case retry.Retried:
		a.Retries = append(a.Retries, e)
	case retry.Parked:
		a.Parks = append(a.Parks, e)
	case retry.DeadLettered:
		a.Deaths = append(a.Deaths, e)
	}
}

func Schedule(delays ...time.Duration) func(*config.Config) {
	return func(b *config.Config) { b.Policy.Schedule = delays }
}

// Queue returns a queue name that only this app uses.
func (a *App) Queue(base string) string { return base + "_" + a.Name }

// Subscriber returns a connected subscriber of the app, which its router closes.
func (a *App) Subscriber() message.Subscriber {
	a.t.Helper()
	s, err := amqp.NewSubscriber(a.Builder.SubscriberConfig(), a.Log)
	require.NoError(a.t, err)
	return s
}

// Handle adds n handlers with retries on a queue. Each handler has one message in flight.
func (a *App) Handle(queue string, handlers int, h message.NoPublishHandlerFunc) {
	a.t.Helper()
	s := a.Subscriber()
	for i := range handlers {
		a.Router.AddConsumerHandler(fmt.Sprintf("%s/%d", queue, i), queue, s, h).AddMiddleware(a.Retry.Middleware)
	}
}

// Run starts the router. When the test ends, the router and then the builder are closed.
func (a *App) Run() {
	a.t.Helper()
	stop := Start(a.t, a.Router)
	a.t.Cleanup(func() {
		stop()
		require.NoError(a.t, a.Builder.Close())
	})
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
	select {
	case <-r.Running():
	case err := <-done:
		require.NoError(t, err)
		t.Fatal("the router stopped before it was running")
	case <-time.After(60 * time.Second):
		t.Fatal("the router did not start in time")
	}
	return func() {
		require.NoError(t, r.Close())
		require.NoError(t, <-done)
	}
}

// Declare declares the topology of queues before there is a subscriber.
func (a *App) Declare(queues ...string) {
	a.t.Helper()
	channel := broker.Channel(a.t)
	for _, queue := range queues {
		require.NoError(a.t, a.Builder.Topology(queue).Declare(channel))
	}
}

// Settle waits until a queue and its tiers are empty, so that all duplicates have arrived.
func (a *App) Settle(queues ...string) {
	a.t.Helper()
	for _, queue := range queues {
		topology := a.Builder.Topology(queue)
		broker.Eventually(a.t, 60*time.Second, func() bool {
			for _, q := range append(topology.Queues, topology.WorkQueue) {
				if q.Name != topology.DeadLetterQueue() && q.Name != a.Name+".orphans" && Depth(a.t, q.Name) > 0 {
					return false
				}
			}
			return true
		}, "the queue and its tiers are empty")
	}
}

// Send publishes to a queue and waits for the confirms.
func Send(t testing.TB, exchange, key string, messages ...amqp091.Publishing) {
	t.Helper()
	channel := broker.Channel(t)
	require.NoError(t, channel.Confirm(false))
	confirms := make([]*amqp091.DeferredConfirmation, 0, len(messages))
	for _, m := range messages {
		m.DeliveryMode = amqp091.Persistent
		confirm, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		require.True(t, confirm.Wait())
	}
}

// Orders returns messages as watermill-amqp publishes them, with identities from 0.
func Orders(n int) []amqp091.Publishing {
	all := make([]amqp091.Publishing, n)
	for i := range all {
		msg := message.NewMessage(ID(i), []byte("order "+ID(i)))
		msg.Metadata.Set("trace", "t"+ID(i))
		all[i], _ = amqp.DefaultMarshaler{}.Marshal(msg)
	}
	return all
}

func ID(i int) string { return fmt.Sprintf("%05d", i) }

// Take consumes a queue until n messages have come, and returns them.
func Take(t testing.TB, queue string, n int) []amqp091.Delivery {
	t.Helper()
	channel := broker.Channel(t)
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	var taken []amqp091.Delivery
	for len(taken) < n {
		select {
		case d := <-deliveries:
			taken = append(taken, d)
		case <-time.After(60 * time.Second):
			require.Failf(t, "messages are missing", "%d of %d in %s", len(taken), n, queue)
		}
	}
	return taken
}

// Depth returns the number of ready messages in a queue.
func Depth(t testing.TB, queue string) int {
	t.Helper()
	q, err := broker.Channel(t).QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// Ledger counts by identity.
type Ledger struct {
	mu     sync.Mutex
	counts map[string]int
	change chan struct{}
}

func NewLedger() *Ledger { return &Ledger{counts: map[string]int{}, change: make(chan struct{}, 1)} }

func (l *Ledger) Add(identity string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[identity]++
	select {
	case l.change <- struct{}{}:
	default:
	}
	return l.counts[identity]
}

func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.counts)
}

// Wait returns when this number of identities has been counted.
func (l *Ledger) Wait(t testing.TB, identities int, within time.Duration) {
	t.Helper()
	deadline := time.After(within)
	for l.Len() < identities {
		select {
		case <-l.change:
		case <-deadline:
			require.Failf(t, "messages are missing", "%d of %d", l.Len(), identities)
		}
	}
}

// Twice returns the identities that came more than once.
func (l *Ledger) Twice() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for identity, count := range l.counts {
		if count > 1 {
			all = append(all, fmt.Sprintf("%s: %d", identity, count))
		}
	}
	return all
}

// Log records the log lines.
type Log struct {
	mu    sync.Mutex
	lines []string
}

func (l *Log) add(level, msg string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, _ := json.Marshal(fmt.Sprint(fields))
	l.lines = append(l.lines, fmt.Sprintf("%s %s %v %s", level, msg, err, text))
}

func (l *Log) Error(msg string, err error, fields watermill.LogFields) {
	l.add("error", msg, err, fields)
}
func (l *Log) Warn(msg string, fields watermill.LogFields)      { l.add("warn", msg, nil, fields) }
func (l *Log) Info(msg string, fields watermill.LogFields)      { l.add("info", msg, nil, fields) }
func (l *Log) Debug(string, watermill.LogFields)                {}
func (l *Log) Trace(string, watermill.LogFields)                {}
func (l *Log) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *Log) Count(text string) int {
	return len(l.Lines(text))
}

// Warnings is how many warnings contain the text.
func (l *Log) Warnings(text string) int {
	warnings := 0
	for _, line := range l.Lines(text) {
		if strings.HasPrefix(line, "warn ") {
			warnings++
		}
	}
	return warnings
}

// PutPolicy sets a policy until the test ends.
func PutPolicy(t testing.TB, name, pattern, definition string) {
	t.Helper()
	client := broker.Management(t)
	var d map[string]any
	require.NoError(t, json.Unmarshal([]byte(definition), &d))
	response, err := client.PutPolicy("/", name, rabbithole.Policy{Pattern: pattern, ApplyTo: "queues", Definition: d})
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Less(t, response.StatusCode, 300)
	t.Cleanup(func() { DeletePolicy(t, name) })
}

// DeletePolicy deletes a policy. It does nothing if the policy does not exist.
func DeletePolicy(t testing.TB, name string) {
	t.Helper()
	response, err := broker.Management(t).DeletePolicy("/", name)
	if response != nil {
		_ = response.Body.Close()
	}
	if err != nil {
		require.ErrorContains(t, err, "404")
	}
}

// Counts returns how often each identity came.
func (l *Ledger) Counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.counts)
}

// Lines returns the lines that contain the text.
func (l *Log) Lines(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Saturate publishes to a queue until it refuses messages.
func Saturate(t testing.TB, queue string) {
	t.Helper()
	channel := broker.Channel(t)
	require.NoError(t, channel.Confirm(false))
	refused := 0 // in a row: a queue that has just become longer than its limit may still take a few
	broker.Eventually(t, time.Minute, func() bool {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false,
			amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("fills")})
		require.NoError(t, err)
		if confirm.Wait() {
			refused = 0
		} else {
			refused++
		}
		return refused == 20
	}, "%s refuses messages", queue)
}
