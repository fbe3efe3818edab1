package board_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	soon    = 2 * time.Minute // much longer than any of it takes
	billing = "billing"       // the handler with every outcome of a delivery
)

var (
	errDown     = errors.New("the provider is down")
	errBusy     = errors.New("the provider is busy")
	errObsolete = errors.New("the order was withdrawn")
	errLocked   = errors.New("another process has the order")
)

// An app does everything that a board shows: each outcome of a delivery, again and again; orphans; a handler that holds messages, one
// that is paused and whose work queue refuses messages, one whose dependency is down. It ends with the test.
type app struct {
	t       *testing.T
	prefix  string
	metrics string // their address
	log     *testapp.Log
	router  *message.Router
	watch   retry.Observer
}

func startApp(t *testing.T) *app {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(exporter.Close)
	a := &app{
		t: t, prefix: broker.Name(t, "board"), metrics: exporter.URL, log: &testapp.Log{},
		watch: observe.Prometheus(registry, observe.Config{WaitingEvery: time.Second}),
	}
	broker.Clean(t, a.prefix)
	a.router = message.NewDefaultRouter(a.log)

	orders, mails, stock := a.connect(), a.connect(refusing), a.connectWithoutTiers()
	a.handleOrders(orders)
	tried := a.handleMails(mails)
	stock.AddConsumerHandler(a.router, "stock", a.queue("stock"), func(*message.Message) error { return errDown })
	t.Cleanup(testapp.Start(t, a.router)) // it is closed before the connections

	a.publish(mails, "mails", "first")
	broker.Receive(t, tried, "the first mail")
	require.NoError(t, mails.Pause("mail"))
	a.fill(mails)
	a.removeTiers(a.queue("stock"))
	a.publish(stock, "stock", "held")
	a.orphan()
	a.goOn(orders)
	return a
}

func (a *app) queue(base string) string { return base + "_" + a.prefix }

func (a *app) settings() config.Config {
	b := config.Config{
		AMQP: amqp.NewDurableQueueConfig(broker.URL(a.t)), Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, time.Second}, Rules: []retry.Rule{
			{Name: "busy", If: retry.Is(errBusy), Then: retry.Snooze(time.Second)},
			{Name: "withdrawn", If: retry.Is(errObsolete), Then: retry.Discard()},
			{Name: "locked", If: retry.Is(errLocked), Then: retry.GiveBack()},
		}}, Settings: rabbitmq.Settings{Prefix: a.prefix},
	}
	b.Management = broker.ManagementURL(a.t)
	return b
}

func (a *app) connect(change ...func(*config.Config)) retry.Connection {
	a.t.Helper()
	settings := a.settings()
	for _, c := range change {
		c(&settings)
	}
	connection, err := config.Connect(settings, a.log)
	require.NoError(a.t, err)
	a.t.Cleanup(func() { require.NoError(a.t, connection.Close()) })
	connection.Observe(a.watch)
	return connection
}

// refusing makes work queues that refuse messages when they are full.
func refusing(b *config.Config) {
	b.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 2, "x-overflow": "reject-publish"}
}

// connectWithoutTiers returns a connection that may declare nothing. Its tiers exist until removeTiers.
func (a *app) connectWithoutTiers() retry.Connection {
	a.t.Helper()
	builder, err := config.NewBuilder(a.settings())
	require.NoError(a.t, err)
	broker.Declare(a.t, builder.Topology(a.queue("stock")).Declare)
	return a.connect(func(b *config.Config) { b.VerifyOnly = true })
}

func (a *app) removeTiers(work string) {
	a.t.Helper()
	channel := broker.Channel(a.t)
	for _, queue := range []string{work + "." + a.prefix + ".1s", work + ".dead"} {
		_, err := channel.QueueDelete(queue, false, false, false)
		require.NoError(a.t, err)
	}
}

// handleOrders adds a handler that does what the payload names, one whose breaker pauses it, and one whose key pauses.
func (a *app) handleOrders(connection retry.Connection) {
	var seen sync.Map
	connection.AddConsumerHandler(a.router, billing, a.queue("orders"), func(msg *message.Message) error {
		_, again := seen.LoadOrStore(msg.UUID, true)
		switch kind := string(msg.Payload); {
		case kind == "exhausted":
			return errDown
		case kind == "permanent":
			return backoff.Permanent(errDown)
		case again || kind == "processed":
			return nil
		case kind == "snoozed":
			return errBusy
		case kind == "discarded":
			return errObsolete
		case kind == "given back":
			return errLocked
		default:
			return errDown
		}
	})
	payment := a.settings().Policy
	payment.Breaker = &retry.Breaker{Least: 1, Pause: 10 * time.Second}
	connection.AddConsumerHandler(a.router, "payment", a.queue("payments"), func(*message.Message) error { return errDown },
		retry.Options{Policy: &payment})
	byKey := a.settings().Policy
	byKey.Breaker = &retry.Breaker{Key: func(*message.Message) string { return "customer-7" }, Least: 1, Pause: time.Hour, MaxPause: time.Hour}
	connection.AddConsumerHandler(a.router, "hooks", a.queue("hooks"), func(*message.Message) error { return errDown },
		retry.Options{Policy: &byKey})
	ordered := retry.Order{Key: func(*message.Message) string { return "customer-7" }, Partitions: 1, Block: true}
	connection.AddConsumerHandler(a.router, "ledger", a.queue("entries"), func(*message.Message) error { return backoff.Permanent(errDown) },
		retry.Options{Order: ordered})
}

// handleMails adds a handler that fails. The channel is closed at its first call.
func (a *app) handleMails(connection retry.Connection) <-chan struct{} {
	tried := make(chan struct{})
	first := sync.OnceFunc(func() { close(tried) })
	connection.AddConsumerHandler(a.router, "mail", a.queue("mails"), func(*message.Message) error {
		first()
		return errDown
	}, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{5 * time.Second}}})
	return tried
}

// fill publishes until the work queue of the mails refuses a message: then the mail on the tier cannot come back.
func (a *app) fill(mails retry.Connection) {
	a.t.Helper()
	until := time.Now().Add(soon)
	for time.Now().Before(until) {
		if mails.Publisher().Publish(a.queue("mails"), message.NewMessage(watermill.NewUUID(), []byte("more"))) != nil {
			return
		}
	}
	a.t.Fatal("the work queue of the mails refused no message")
}

// orphan publishes a message as if it came back from a tier to a work queue that is gone.
func (a *app) orphan() {
	a.t.Helper()
	require.NoError(a.t, broker.Channel(a.t).PublishWithContext(a.t.Context(), a.prefix+".return", "1s."+a.queue("gone"), false, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, Body: []byte("orphan"),
	}))
}

func (a *app) publish(connection retry.Connection, topic, kind string) {
	require.NoError(a.t, connection.Publisher().Publish(a.queue(topic), message.NewMessage(watermill.NewUUID(), []byte(kind))))
}

// goOn publishes one message of each kind four times a second until the test ends: rates need values that change.
func (a *app) goOn(connection retry.Connection) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, kind := range []string{"processed", "recovered", "exhausted", "permanent", "snoozed", "discarded", "given back"} {
				if err := connection.Publisher().Publish(a.queue("orders"), message.NewMessage(watermill.NewUUID(), []byte(kind))); err != nil {
					done <- err
					return
				}
			}
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-tick.C:
			}
		}
	}()
	a.publish(connection, "payments", "fails")
	a.publish(connection, "entries", "fails")
	a.publish(connection, "hooks", "fails")
	a.t.Cleanup(func() {
		cancel()
		require.NoError(a.t, <-done)
	})
}
