package connect_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestSchedulesOfOneQueue: its tiers are those of all its handlers, also of one that is added later.
func TestSchedulesOfOneQueue(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	tier := func(delay string) string { return s.Queue("orders") + "." + s.Name + "." + delay }
	delays := testapp.NewLedger()
	options := func(schedule ...time.Duration) retry.Options {
		return retry.Options{Policy: &retry.Policy{Schedule: schedule}, Concurrency: 1}
	}
	s.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.Retried && e.Handler != "third" {
			delays.Add(e.Handler + " " + e.Tier.String())
		}
	}))
	fail := func(*message.Message) error { return errDown }
	s.AddConsumerHandler(s.Router, "first", s.Queue("orders"), fail, options(110*time.Millisecond, 120*time.Millisecond))
	s.AddConsumerHandler(s.Router, "second", s.Queue("orders"), fail, options(120*time.Millisecond, 130*time.Millisecond))
	s.AddConsumerHandler(s.Router, "third", s.Queue("orders"), fail) // the connection's: 100 ms and 300 ms
	s.Run()
	for _, delay := range []string{"100ms", "110ms", "120ms", "130ms", "300ms"} {
		assert.True(t, testapp.Exists(t, tier(delay)), delay)
	}
	assert.False(t, testapp.Exists(t, tier("140ms")))

	s.AddConsumerHandler(s.Router, "later", s.Queue("orders"), fail, options(140*time.Millisecond))
	require.NoError(t, s.Router.RunHandlers(context.Background()))
	assert.True(t, testapp.Exists(t, tier("140ms")))

	// Each handler takes the delay of its own schedule.
	publish := 0
	testapp.Eventually(t, func() bool {
		s.Publish(s.Queue("orders"), testapp.ID(publish))
		publish++
		counts := delays.Counts()
		return counts["first 110ms"]+counts["first 120ms"] > 0 && counts["second 120ms"]+counts["second 130ms"] > 0 &&
			counts["later 140ms"] > 0
	}, "each of the handlers has retried a message")
	for entry := range delays.Counts() {
		assert.Contains(t, []string{"first 110ms", "first 120ms", "second 120ms", "second 130ms", "later 140ms"}, entry)
	}
}

// TestDeletedTiersAreDeclaredAgain, those of all schedules of the queue.
func TestDeletedTiersAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	processed := testapp.NewLedger()
	bill := func(msg *message.Message) error {
		if testapp.Failures(msg) == 0 {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	}
	s.AddConsumerHandler(s.Router, "first", s.Queue("orders"), bill,
		retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{150 * time.Millisecond}}})
	s.AddConsumerHandler(s.Router, "second", s.Queue("orders"), bill,
		retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{250 * time.Millisecond}}})
	s.Run()
	tiers := []string{s.Queue("orders") + "." + s.Name + ".150ms", s.Queue("orders") + "." + s.Name + ".250ms"}
	for _, tier := range tiers {
		testapp.Delete(t, tier)
	}
	s.Publish(s.Queue("orders"), testapp.IDs(40)...) // both handlers get some of them
	processed.Wait(t, 40, soon)
	for _, tier := range tiers {
		assert.True(t, testapp.Exists(t, tier), tier)
	}
	assert.Empty(t, s.Log.Lines("holding"))
}

// TestConcurrency: as many calls as configured run at the same time, and not one more.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		options []retry.Options
		want    int
	}{
		"default": {nil, 16},
		"own":     {[]retry.Options{{Concurrency: 5}}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testapp.New(t, func(b *config.Config) { b.AMQP.Consume.Qos.PrefetchCount = 35 })
			leave := make(chan struct{})
			release := sync.OnceFunc(func() { close(leave) })
			t.Cleanup(release)
			entered := testapp.NewLedger()
			s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
				entered.Add(msg.UUID)
				<-leave
				return nil
			}, row.options...)
			s.Run()
			s.Publish(s.Queue("orders"), testapp.IDs(40)...)
			entered.Wait(t, row.want, soon)
			// The broker has sent all of the prefetch.
			testapp.Eventually(t, func() bool { return testapp.Depth(t, s.Queue("orders")) == 5 }, "35 messages are fetched")
			assert.Equal(t, row.want, entered.Len())
			testapp.Eventually(t, func() bool { return s.Health().Subscriptions[0].InFlight == row.want }, "they are in flight")
			health := s.Health().Subscriptions[0]
			assert.Equal(t, []int{row.want, row.want, 35}, []int{health.Calls, health.Concurrency, health.Prefetch})
			release()
			entered.Wait(t, 40, soon)
			assert.Empty(t, entered.Twice())
		})
	}
}

// TestRedeliveredMark: an app on v3 sees which messages the broker delivers again, as with its own subscriber.
func TestRedeliveredMark(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	var deliveries diary
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		deliveries.add(msg.Metadata.Get("_watermill_amqp_redelivered"))
		switch len(deliveries.all()) {
		case 1:
			msg.Nack()
			return nil
		case 2:
			return errDown
		}
		return nil
	})
	s.Run()
	s.Publish(s.Queue("orders"), "1")
	testapp.Eventually(t, func() bool { return len(deliveries.all()) == 3 }, "nacked, failed, processed")
	want := []string{"", "true", ""}
	if amqp.Major == "v2" {
		want[1] = ""
	}
	assert.Equal(t, want, deliveries.all())
}
