package connect_test

import (
	"context"
	"fmt"
	"strings"
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
	s := open(t)
	tier := func(delay string) string { return s.topic("orders") + "." + s.name + "." + delay }
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
	s.handle("first", "orders", fail, options(110*time.Millisecond, 120*time.Millisecond))
	s.handle("second", "orders", fail, options(120*time.Millisecond, 130*time.Millisecond))
	s.handle("third", "orders", fail) // the connection's: 100 ms and 300 ms
	s.run()
	for _, delay := range []string{"100ms", "110ms", "120ms", "130ms", "300ms"} {
		assert.True(t, exists(t, tier(delay)), delay)
	}
	assert.False(t, exists(t, tier("140ms")))

	s.handle("later", "orders", fail, options(140*time.Millisecond))
	require.NoError(t, s.router.RunHandlers(context.Background()))
	assert.True(t, exists(t, tier("140ms")))

	// Each handler takes the delay of its own schedule.
	publish := 0
	eventually(t, func() bool {
		s.publish("orders", testapp.ID(publish))
		publish++
		counts := delays.Counts()
		return counts["first 110ms"]+counts["first 120ms"] > 0 && counts["second 120ms"]+counts["second 130ms"] > 0 && counts["later 140ms"] > 0
	}, "each of the handlers has retried a message")
	for entry := range delays.Counts() {
		assert.Contains(t, []string{"first 110ms", "first 120ms", "second 120ms", "second 130ms", "later 140ms"}, entry)
	}
}

// TestScheduleOfTheMiddlewareOption: the tiers of a handler are those of its changed configuration.
func TestScheduleOfTheMiddlewareOption(t *testing.T) {
	t.Parallel()
	s := open(t)
	tier := func(delay string) string { return s.topic("orders") + "." + s.name + "." + delay }
	done := testapp.NewLedger()
	s.handle("billing", "orders", func(msg *message.Message) error {
		if failures(msg) < 2 {
			return errDown
		}
		done.Add(msg.UUID)
		return nil
	}, retry.Options{
		Policy: &retry.Policy{Schedule: backoff.Schedule{70 * time.Millisecond, 80 * time.Millisecond}},
	})
	s.run()
	for _, delay := range []string{"70ms", "80ms"} {
		assert.True(t, exists(t, tier(delay)), delay)
	}
	assert.False(t, exists(t, tier("1h")))
	s.publish("orders", "1")
	done.Wait(t, 1, soon)
}

// TestDeletedTiersAreDeclaredAgain, those of all schedules of the queue.
func TestDeletedTiersAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	s := open(t)
	processed := testapp.NewLedger()
	bill := func(msg *message.Message) error {
		if failures(msg) == 0 {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	}
	s.handle("first", "orders", bill, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{150 * time.Millisecond}}})
	s.handle("second", "orders", bill, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{250 * time.Millisecond}}})
	s.run()
	tiers := []string{s.topic("orders") + "." + s.name + ".150ms", s.topic("orders") + "." + s.name + ".250ms"}
	for _, tier := range tiers {
		deleteQueue(t, tier)
	}
	s.publish("orders", ids(40)...) // both handlers get some of them
	processed.Wait(t, 40, soon)
	for _, tier := range tiers {
		assert.True(t, exists(t, tier), tier)
	}
	assert.Empty(t, s.log.Lines("holding"))
}

// TestDeclaredOnce: handlers of one topic declare its topology once, also with several schedules.
func TestDeclaredOnce(t *testing.T) {
	t.Parallel()
	built := make(chan string, 100)
	s := open(t, func(b *config.Config) { b.AMQP.TopologyBuilder = &amqp.SpyTopologyBuilder{Built: built} })
	for i := range 16 {
		s.handle(fmt.Sprint("billing-", i), "orders", func(*message.Message) error { return nil },
			retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Duration(100+i%3) * time.Millisecond}}})
	}
	s.handle("mail", "mails", func(*message.Message) error { return nil })
	s.run()
	var topologies []string
	for range len(built) {
		topologies = append(topologies, <-built)
	}
	assert.ElementsMatch(t, []string{s.topic("orders"), s.topic("mails")}, topologies)
}

// TestConcurrency: as many messages as configured are in flight, and not one more.
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
			s := open(t, func(b *config.Config) { b.AMQP.Consume.Qos.PrefetchCount = 30 })
			leave := make(chan struct{})
			release := sync.OnceFunc(func() { close(leave) })
			t.Cleanup(release)
			entered := testapp.NewLedger()
			s.handle("billing", "orders", func(msg *message.Message) error {
				entered.Add(msg.UUID)
				<-leave
				return nil
			}, row.options...)
			s.run()
			s.publish("orders", ids(40)...)
			entered.Wait(t, row.want, soon)
			// The broker has sent all of the prefetch.
			eventually(t, func() bool { return testapp.Depth(t, s.topic("orders")) == 10 }, "30 messages are fetched")
			assert.Equal(t, row.want, entered.Len())
			eventually(t, func() bool { return s.Health().Subscriptions[0].InFlight == row.want }, "they are in flight")
			release()
			entered.Wait(t, 40, soon)
			assert.Empty(t, entered.Twice())
		})
	}
}

// TestOrderKey: messages of one key one after the other, in their order, for the handler that asks for it.
func TestOrderKey(t *testing.T) {
	t.Parallel()
	const concurrency, count = 8, 60
	s := open(t)
	customer := func(msg *message.Message) string { key, _, _ := strings.Cut(msg.UUID, "/"); return key }
	var mu sync.Mutex
	inFlight, order, most := map[string]int{}, map[string][]string{}, 0
	entered, done := testapp.NewLedger(), testapp.NewLedger()
	leave := make(chan struct{})
	release := sync.OnceFunc(func() { close(leave) })
	t.Cleanup(release)
	s.handle("billing", "orders", func(msg *message.Message) error {
		key := customer(msg)
		mu.Lock()
		inFlight[key]++
		most = max(most, inFlight[key])
		order[key] = append(order[key], msg.UUID)
		mu.Unlock()
		entered.Add(msg.UUID)
		<-leave
		mu.Lock()
		inFlight[key]--
		mu.Unlock()
		done.Add(msg.UUID)
		return nil
	}, retry.Options{OrderKey: customer, Concurrency: concurrency})
	s.run()
	want := map[string][]string{}
	for _, id := range ids(count / 2) {
		for _, key := range []string{"a", "b"} {
			want[key] = append(want[key], key+"/"+id)
			s.publish("orders", key+"/"+id)
		}
	}
	entered.Wait(t, 2, soon)
	eventually(t, func() bool { return testapp.Depth(t, s.topic("orders")) == 0 }, "the others are fetched, and wait for their key")
	s.publish("orders", "c/1") // no message of its key is in flight
	entered.Wait(t, 3, soon)
	release()
	done.Wait(t, count+1, soon)
	want["c"] = []string{"c/1"}
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, want, order)
	assert.Equal(t, 1, most, "messages of one key at the same time")
}

// TestRedeliveredMark: an app on v3 sees which messages the broker delivers again, as with its own subscriber.
func TestRedeliveredMark(t *testing.T) {
	t.Parallel()
	s := open(t)
	var deliveries diary
	s.handle("billing", "orders", func(msg *message.Message) error {
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
	s.run()
	s.publish("orders", "1")
	eventually(t, func() bool { return len(deliveries.all()) == 3 }, "nacked, failed, processed")
	want := []string{"", "true", ""}
	if amqp.Major == "v2" {
		want[1] = ""
	}
	assert.Equal(t, want, deliveries.all())
}
