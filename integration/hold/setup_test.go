// Package hold_test has apps whose copies cannot be published, on a broker.
package hold_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = 60 * time.Second // much longer than any of it takes

var errDown = errors.New("the bank is down")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, broker.LeaksOfProxies()...) }

// A plan is what a test wants of an app.
type plan struct {
	schedule    backoff.Schedule
	concurrency int
	publishing  string // the broker's address for publishing copies; empty: without a proxy
	change      func(*config.Config)
	policy      func(*retry.Policy)
	handle      func(*message.Message) error
	expires     <-chan struct{} // closed: the deadline of the context of Router.Run is over; nil: it has none
}

// An app is one handler with retries on a queue that no other test uses.
type app struct {
	t          testing.TB
	name       string // the prefix
	queue      string
	log        *testapp.Log
	router     *message.Router
	stop       func()           // of the router
	closeParts func() error     // of the publisher of the parts, or of the Connection
	connection retry.Connection // nil: the parts
	// publish publishes a message that comes to the queue, on the connection of the copies.
	publish func(*message.Message) error

	mu     sync.Mutex
	events []retry.Event
}

// wires are the two ways to make an app: Connect, and the parts over watermill-amqp.
var wires = []struct {
	name string
	add  func(*app, config.Config, plan)
}{{"connect", connect}, {"parts", parts}}

// onBoth runs a test on both wires.
func onBoth(t *testing.T, test func(t *testing.T, start func(plan) *app)) {
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			t.Parallel()
			test(t, func(p plan) *app { return start(t, p, wire.add) })
		})
	}
}

// start starts an app, which ends with the test.
func start(t testing.TB, p plan, add func(*app, config.Config, plan)) *app {
	t.Helper()
	a := &app{t: t, name: broker.Name(t, "t"), log: &testapp.Log{}}
	a.queue = "orders_" + a.name
	broker.Clean(t, a.name)
	b := config.Config{AMQP: amqp.NewDurableQueueConfig(broker.URL(t)), Policy: retry.Policy{Schedule: p.schedule}, Settings: rabbitmq.Settings{Prefix: a.name}}
	if p.change != nil {
		p.change(&b)
	}
	if b.VerifyOnly {
		declared := b
		declared.VerifyOnly = false
		builder, err := config.NewBuilder(declared)
		require.NoError(t, err)
		require.NoError(t, builder.Topology(a.queue).Declare(broker.Channel(t)))
	}
	a.router = message.NewDefaultRouter(a.log)
	add(a, b, p)
	var runs testapp.Runnable = a.router
	if p.expires != nil {
		runs = expiring{a.router, p.expires}
	}
	stop := testapp.Start(t, runs)
	a.stop = sync.OnceFunc(stop)
	t.Cleanup(func() {
		a.stop()
		require.NoError(t, a.closeParts())
	})
	return a
}

// expiring is a router whose context has a deadline.
type expiring struct {
	*message.Router
	over <-chan struct{}
}

func (e expiring) Run(ctx context.Context) error {
	return e.Router.Run(deadline{ctx, time.Now().Add(time.Hour), e.over})
}

// deadline is a context whose deadline is over when a test says so.
type deadline struct {
	context.Context
	at   time.Time
	over <-chan struct{}
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func connect(a *app, b config.Config, p plan) {
	if p.publishing != "" { // Connect opens the connection for consuming first
		proxy, err := amqp091.ParseURI(p.publishing)
		require.NoError(a.t, err)
		opened := 0
		b.AMQP.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			if opened++; opened > 1 {
				address = net.JoinHostPort(proxy.Host, strconv.Itoa(proxy.Port))
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		}}
	}
	if p.policy != nil {
		p.policy(&b.Policy)
	}
	connection, err := config.Connect(b, a.log)
	require.NoError(a.t, err)
	connection.Observe(eventtest.OnEvent(a.event))
	connection.AddConsumerHandler(a.router, "billing", a.queue, p.handle, retry.Options{Concurrency: p.concurrency})
	a.connection, a.closeParts = connection, connection.Close
	a.publish = func(msg *message.Message) error { return connection.Publisher().Publish(a.queue, msg) }
}

func parts(a *app, b config.Config, p plan) {
	direct := b.AMQP.Connection.AmqpURI
	if p.publishing != "" {
		b.AMQP.Connection.AmqpURI = p.publishing
	}
	if p.policy != nil {
		p.policy(&b.Policy)
	}
	builder, err := config.NewBuilder(b)
	require.NoError(a.t, err)
	builder.Observe(eventtest.OnEvent(a.event))
	tiered, err := builder.NewTieredRetry(a.log)
	require.NoError(a.t, err)
	consuming := builder.SubscriberConfig()
	consuming.Connection.AmqpURI = direct
	subscriber, err := amqp.NewSubscriber(consuming, a.log)
	require.NoError(a.t, err)
	for i := range p.concurrency { // each handler has one message in flight
		a.router.AddConsumerHandler("billing"+strconv.Itoa(i), a.queue, subscriber, p.handle).AddMiddleware(tiered.Middleware)
	}
	a.closeParts = builder.Close
	a.t.Cleanup(func() { require.NoError(a.t, subscriber.Close()) }) // the router does not where its context ends first
	a.publish = func(msg *message.Message) error {
		return testapp.Fail(tiered, builder.SubscriberConfig().Marshaler, a.queue, msg, errDown)
	}
}

func (a *app) event(e retry.Event) {
	if e.MessageUUID == poke {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
}

// outcomes returns the events of an outcome.
func (a *app) outcomes(outcome retry.Outcome) []retry.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.events), func(e retry.Event) bool { return e.Outcome != outcome })
}

func (a *app) tierQueue(tier time.Duration) string {
	return a.queue + "." + a.name + "." + backoff.Tier(tier).String()
}

func (a *app) send(n int) { testapp.Send(a.t, "", a.queue, testapp.Orders(n)...) }

func (a *app) wait(happened func() bool, what string, args ...any) {
	a.t.Helper()
	broker.Eventually(a.t, soon, happened, what, args...)
}

// messages is how many messages of the work queue are ready, and how many are not acknowledged.
func (a *app) messages(queue string) (ready, unacked int) {
	info, err := broker.Queue(broker.Management(a.t), queue)
	require.NoError(a.t, err)
	return info.Messages - info.MessagesUnacknowledged, info.MessagesUnacknowledged
}

// done waits until the work queue is empty, and asserts that nothing is left elsewhere.
func (a *app) done() {
	a.t.Helper()
	a.wait(func() bool { ready, unacked := a.messages(a.queue); return ready+unacked == 0 }, "the work queue is empty")
	assert.Zero(a.t, testapp.Depth(a.t, a.name+".orphans"))
}

// letters takes dead letters, and returns their dead reasons by identity.
func (a *app) letters(n int) map[string]string {
	a.t.Helper()
	reasons := map[string]string{}
	for _, d := range testapp.Take(a.t, a.queue+".dead", n) {
		reasons[d.Headers["_watermill_message_uuid"].(string)], _ = d.Headers[recordkey.DeadReason].(string)
	}
	return reasons
}

// fill makes a tier full for good: a policy limits its length, and the messages that it has cannot leave it, because the queue for
// which they are is full, too.
func (a *app) fill(tiers ...time.Duration) {
	a.t.Helper()
	channel := broker.Channel(a.t)
	for _, tier := range tiers {
		queue := a.tierQueue(tier)
		stuck := a.name + "_stuck_" + backoff.Tier(tier).String()
		_, err := channel.QueueDeclare(stuck, true, false, false, false, amqp091.Table{
			"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish",
		})
		require.NoError(a.t, err)
		testapp.Saturate(a.t, stuck)
		require.NoError(a.t, channel.QueueBind(stuck, queue, a.name+".return", false, nil))
		testapp.PutPolicy(a.t, queue, "^"+queue+"$", `{"max-length": 1}`)
		testapp.Saturate(a.t, queue)
	}
}

// times are the times of the calls of each message.
type times struct {
	mu    sync.Mutex
	calls map[string][]time.Time
}

func newTimes() *times { return &times{calls: map[string][]time.Time{}} }

func (l *times) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[id] = append(l.calls[id], time.Now())
}

func (l *times) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls)
}

func (l *times) all() map[string][]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.calls)
}
