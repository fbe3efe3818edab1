// Package outage_test has handlers whose dependency is down, on a broker.
package outage_test

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = 60 * time.Second // much longer than any of it takes

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, broker.LeaksOfProxies()...) }

var errDown = errors.New("the bank is down")

// A shop has one handler on Connect, with a dependency that can be down. Its queues have names that no other test uses.
type shop struct {
	retry.Connection
	t      testing.TB
	name   string // the prefix
	orders string // the topic, and the work queue
	router *message.Router
	stop   func() // the router

	hangs atomic.Pointer[chan struct{}] // the message with the UUID "hangs" stays in the handler until it is closed

	down  atomic.Bool
	calls atomic.Int64 // while it is down

	mu       sync.Mutex
	handled  map[string]int // by UUID
	outcomes map[retry.Outcome]int
}

func open(t testing.TB, options retry.Options, change ...func(*retry.Policy)) *shop {
	t.Helper()
	name := broker.Name(t, "outage")
	broker.Clean(t, name)
	s := &shop{t: t, name: name, orders: "orders_" + name, handled: map[string]int{}, outcomes: map[retry.Outcome]int{}}
	log := &testapp.Log{}
	var err error
	policy := retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond}}
	for _, c := range change {
		c(&policy)
	}
	s.Connection, err = config.Connect(config.Config{
		AMQP:     amqp.NewDurableQueueConfig(broker.URL(t)),
		Policy:   policy,
		Settings: rabbitmq.Settings{Prefix: name},
	}, log)
	require.NoError(t, err)
	s.router = message.NewDefaultRouter(log)
	options.Concurrency = cmp.Or(options.Concurrency, 16)
	s.Observe(eventtest.OnEvent(s.observe))
	s.AddConsumerHandler(s.router, "billing", s.orders, s.bill, options)
	stop := sync.OnceFunc(testapp.Start(t, s.router))
	s.stop = stop
	t.Cleanup(func() {
		stop()
		require.NoError(t, s.Close())
	})
	return s
}

func (s *shop) bill(msg *message.Message) error {
	if released := s.hangs.Load(); released != nil && msg.UUID == "hangs" {
		<-*released
	}
	if s.down.Load() {
		s.calls.Add(1)
		return errDown
	}
	time.Sleep(time.Millisecond) // the duration of the work
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handled[msg.UUID]++
	return nil
}

func (s *shop) observe(e retry.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes[e.Outcome]++
}

// count returns how often there was an outcome.
func (s *shop) count(outcome retry.Outcome) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outcomes[outcome]
}

// done is how many messages have been handled.
func (s *shop) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handled)
}

// publish publishes messages whose UUIDs begin at first.
func (s *shop) publish(first, n int) {
	s.t.Helper()
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = message.NewMessage(testapp.ID(first+i), []byte("order"))
	}
	require.NoError(s.t, s.Publisher().Publish(s.orders, all...))
}

// send publishes one message with metadata.
func (s *shop) send(uuid, key, value string) {
	s.t.Helper()
	msg := message.NewMessage(uuid, []byte("order"))
	msg.Metadata.Set(key, value)
	require.NoError(s.t, s.Publisher().Publish(s.orders, msg))
}

// queue returns how many messages wait on the work queue, and how many consumers it has.
func (s *shop) queue() (ready, consumers int) {
	s.t.Helper()
	state, err := broker.Channel(s.t).QueueDeclarePassive(s.orders, true, false, false, false, nil)
	require.NoError(s.t, err)
	return state.Messages, state.Consumers
}

func (s *shop) dead() int { return testapp.Depth(s.t, s.orders+".dead") }

func (s *shop) state() retry.SubscriptionHealth { return s.Health().Subscriptions[0] }

func (s *shop) paused() []string { return s.state().Paused }

func (s *shop) eventually(happened func() bool, what string, args ...any) {
	s.t.Helper()
	broker.Eventually(s.t, soon, happened, what, args...)
}
