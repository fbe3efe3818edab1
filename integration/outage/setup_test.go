// Package outage_test has handlers whose dependency is down, on a broker.
package outage_test

import (
	"cmp"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = 60 * time.Second // much longer than any of it takes

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, broker.LeaksOfProxies()...) }

var errDown = errors.New("the bank is down")

// A shop has one handler, with a dependency that can be down.
type shop struct {
	*testapp.App
	t      testing.TB
	orders string // the topic, and the work queue

	hangs atomic.Pointer[chan struct{}] // the message with the UUID "hangs" stays in the handler until it is closed

	down  atomic.Bool
	calls atomic.Int64 // while it is down

	handled *testapp.Ledger // by UUID
}

func open(t testing.TB, options retry.Options, change ...func(*retry.Policy)) *shop {
	t.Helper()
	s := &shop{t: t, handled: testapp.NewLedger()}
	s.App = testapp.New(t, func(c *config.Config) {
		for _, f := range change {
			f(&c.Policy)
		}
	})
	s.orders = s.Queue("orders")
	options.Concurrency = cmp.Or(options.Concurrency, 16)
	s.AddConsumerHandler(s.Router, "billing", s.orders, s.bill, options)
	s.Run()
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
	s.handled.Add(msg.UUID)
	return nil
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
