// Package hold_test has apps whose copies cannot be published, on a broker.
package hold_test

import (
	"context"
	"errors"
	"net"
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
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
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
	handle      func(*message.Message) error
	expires     <-chan struct{} // closed: the deadline of the context of Router.Run is over; nil: it has none
}

// An app is one handler with retries.
type app struct {
	*testapp.App
	t     testing.TB
	queue string
	stop  func() // closes the router
}

// start starts an app, which ends with the test.
func start(t testing.TB, p plan) *app {
	t.Helper()
	c := testapp.Config(t, testapp.Schedule(p.schedule...))
	if p.change != nil {
		p.change(&c)
	}
	if p.publishing != "" {
		throughProxy(t, &c, p.publishing)
	}
	a := &app{t: t, queue: "orders_" + c.Prefix}
	if c.VerifyOnly {
		declared := c
		declared.VerifyOnly = false
		builder, err := config.NewBuilder(declared)
		require.NoError(t, err)
		broker.Declare(t, builder.Topology(a.queue).Declare)
	}
	a.App = testapp.Connect(t, c)
	a.Handle(a.queue, p.concurrency, p.handle)
	var runs testapp.Runnable = a.Router
	if p.expires != nil {
		runs = expiring{a.Router, p.expires}
	}
	a.stop = sync.OnceFunc(testapp.Start(t, runs))
	t.Cleanup(a.stop)
	return a
}

// throughProxy leads the connection for copies through a proxy. Connect opens the one for consuming first.
func throughProxy(t testing.TB, c *config.Config, uri string) {
	t.Helper()
	proxy, err := amqp091.ParseURI(uri)
	require.NoError(t, err)
	opened := 0
	c.AMQP.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
		if opened++; opened > 1 {
			address = net.JoinHostPort(proxy.Host, strconv.Itoa(proxy.Port))
		}
		return amqp091.DefaultDial(30*time.Second)(network, address)
	}}
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

func (a *app) send(n int) { testapp.Send(a.t, "", a.queue, testapp.Orders(n)...) }

// messages is how many messages of the work queue are ready, and how many are not acknowledged.
func (a *app) messages(queue string) (ready, unacked int) {
	info, err := broker.Queue(broker.Management(a.t), queue)
	require.NoError(a.t, err)
	return info.Messages - info.MessagesUnacknowledged, info.MessagesUnacknowledged
}

// done waits until the work queue is empty, and asserts that nothing is left elsewhere.
func (a *app) done() {
	a.t.Helper()
	testapp.Eventually(a.t, func() bool { ready, unacked := a.messages(a.queue); return ready+unacked == 0 },
		"the work queue is empty")
	assert.Zero(a.t, testapp.Depth(a.t, a.Name+".orphans"))
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

// fill makes a tier full for good: a policy limits its length, and the messages that it has cannot leave it, because
// the queue for which they are is full, too.
func (a *app) fill(tiers ...time.Duration) {
	a.t.Helper()
	channel := broker.Channel(a.t)
	for _, tier := range tiers {
		queue := a.TierQueue(a.queue, tier)
		stuck := a.Name + "_stuck_" + backoff.Tier(tier).String()
		_, err := channel.QueueDeclare(stuck, true, false, false, false, amqp091.Table{
			"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish",
		})
		require.NoError(a.t, err)
		testapp.Saturate(a.t, stuck)
		require.NoError(a.t, channel.QueueBind(stuck, queue, a.Name+".return", false, nil))
		testapp.PutPolicy(a.t, queue, "^"+queue+"$", `{"max-length": 1}`)
		testapp.Saturate(a.t, queue)
	}
}
