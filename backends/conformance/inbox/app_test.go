package main

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// app is an app with an inbox on Go channels, whose messages come at once.
type app struct {
	t       *testing.T
	db      *sql.DB
	box     *inbox.Inbox
	router  *message.Router
	retries retry.Connection
	logs    *watermill.CaptureLoggerAdapter
	events  chan retry.Event
}

func newApp(t *testing.T, table string, config inbox.Config) *app {
	t.Helper()
	config.Table, config.CreateTable = table, true
	a := &app{t: t, logs: watermill.NewCaptureLogger(), events: make(chan retry.Event, 1000)}
	var err error
	a.db, err = sql.Open("pgx", database(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.db.Close()) })
	a.box, err = inbox.New(a.db, config, a.logs)
	require.NoError(t, err)
	_, err = a.db.Exec("CREATE TABLE IF NOT EXISTS " + table + "_effects (message text NOT NULL)")
	require.NoError(t, err)
	channel := gochannel.NewGoChannel(gochannel.Config{}, a.logs)
	a.retries, err = relay.Connect(relay.Config{
		Publisher: channel, Policy: retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond}},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return channel, nil },
	}, a.logs)
	require.NoError(t, err)
	a.retries.Observe(eventtest.OnEvent(func(e retry.Event) {
		select {
		case a.events <- e:
		default: // a message that comes again and again
		}
	}))
	a.router = message.NewDefaultRouter(a.logs)
	return a
}

func (a *app) run() {
	a.t.Helper()
	ended, err := process.Serve(context.Background(), a.router)
	require.NoError(a.t, err)
	a.t.Cleanup(func() {
		require.NoError(a.t, a.router.Close())
		require.NoError(a.t, <-ended)
		require.NoError(a.t, a.retries.Close())
	})
}

// outcome awaits the next event.
func (a *app) outcome() retry.Event { a.t.Helper(); return wait.For(a.t, a.events, "an outcome") }

func (a *app) count(query string) (n int) {
	a.t.Helper()
	require.NoError(a.t, a.db.QueryRow(query).Scan(&n))
	return n
}

func (a *app) publish(uuid string) {
	a.t.Helper()
	require.NoError(a.t, a.retries.Publisher().Publish("orders", message.NewMessage(uuid, []byte(`{"Name": "x"}`))))
}

// A lock on the table stands for another delivery that goes on: the message waits on its tier, and counts no failure.
func TestAppSnoozesWhileTheFirstDeliveryGoesOn(t *testing.T) {
	t.Parallel()
	a := newApp(t, "app_snoozes", inbox.Config{Wait: 2 * time.Second})
	a.retries.AddConsumerHandler(a.router, "billing", "orders", func(msg *message.Message) error {
		_, err := inbox.Tx(msg.Context()).Exec("INSERT INTO app_snoozes_effects VALUES ($1)", msg.UUID)
		return err
	}).AddMiddleware(a.box.Middleware)
	a.run()
	lock, err := a.db.Begin()
	require.NoError(t, err)
	_, err = lock.Exec("LOCK TABLE app_snoozes IN SHARE MODE")
	require.NoError(t, err)
	a.publish("1")
	for range 2 { // more than the schedule has retries
		e := a.outcome()
		assert.Equal(t, retry.Snoozed, e.Outcome)
		assert.Equal(t, "inbox", e.Rule)
		assert.Zero(t, e.Record.Failures)
	}
	require.NoError(t, lock.Rollback())
	e := a.outcome()
	for e.Outcome == retry.Snoozed {
		e = a.outcome()
	}
	assert.Equal(t, retry.Recovered, e.Outcome)
	a.publish("1")
	e = a.outcome()
	assert.Equal(t, retry.Duplicate, e.Outcome)
	assert.Zero(t, e.Duration)
	assert.Equal(t, 1, a.count("SELECT count(*) FROM app_snoozes_effects"))
}

// Where the router cannot publish what the handler has produced, the retry publishes what is stored.
func TestAppPublishesStoredMessages(t *testing.T) {
	t.Parallel()
	a := newApp(t, "app_stores", inbox.Config{})
	publisher := &failingPublisher{fails: 1, published: make(chan string, 10)}
	subscriber, err := a.retries.Subscriber("billing")
	require.NoError(t, err)
	bill := func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Tx(msg.Context()).Exec("INSERT INTO app_stores_effects VALUES ($1)", msg.UUID)
		return message.Messages{message.NewMessage("invoice", msg.Payload)}, err
	}
	a.router.AddHandler("billing", "orders", subscriber, "invoices", publisher, bill).AddMiddleware(
		a.retries.Middleware, a.box.Middleware)
	a.run()
	a.publish("1")
	assert.Equal(t, retry.Processed, a.outcome().Outcome)
	assert.Equal(t, retry.Retried, a.outcome().Outcome)
	assert.Equal(t, retry.Duplicate, a.outcome().Outcome)
	assert.Equal(t, "invoice", wait.For(t, publisher.published, "the stored message is published"))
	assert.Equal(t, 1, a.count("SELECT count(*) FROM app_stores_effects"))
}

// failingPublisher is a publisher of the app whose server is away at first.
type failingPublisher struct {
	fails     int
	published chan string
}

func (p *failingPublisher) Publish(_ string, messages ...*message.Message) error {
	if p.fails--; p.fails >= 0 {
		return errors.New("the server is away")
	}
	for _, msg := range messages {
		p.published <- msg.UUID
	}
	return nil
}

func (p *failingPublisher) Close() error { return nil }

// The event handlers of components/cqrs have the transaction in their context. Two of them each handle an event once.
func TestAppWithCQRS(t *testing.T) {
	t.Parallel()
	type orderPlaced struct{ Name string }
	a := newApp(t, "app_cqrs", inbox.Config{})
	a.router.AddMiddleware(a.retries.Middleware, a.box.Middleware)
	processor, err := cqrs.NewEventProcessorWithConfig(a.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return "orders", nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.retries.Subscriber(p.HandlerName)
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: func(any) string { return "" }},
	})
	require.NoError(t, err)
	for _, name := range []string{"shipping", "mailing"} {
		handle := func(ctx context.Context, e *orderPlaced) error {
			_, err := inbox.Tx(ctx).Exec("INSERT INTO app_cqrs_effects VALUES ($1)", name+e.Name)
			return err
		}
		require.NoError(t, processor.AddHandlers(cqrs.NewEventHandler(name, handle)))
	}
	a.run()
	for _, want := range []retry.Outcome{retry.Processed, retry.Duplicate} {
		a.publish("1")
		for range 2 {
			assert.Equal(t, want, a.outcome().Outcome)
		}
	}
	assert.Equal(t, 2, a.count("SELECT count(DISTINCT message) FROM app_cqrs_effects"))
	assert.Equal(t, 2, a.count("SELECT count(*) FROM app_cqrs_effects"))
}
