package connect_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestManyRequestedDelaysOverShortTiers: half of the messages are delayed by their publisher, half by their handler.
// None comes early, each is published once a second, and none takes the place of a message that is not delayed.
func TestManyRequestedDelaysOverShortTiers(t *testing.T) {
	t.Parallel()
	const (
		requested = 10 * time.Second
		delayed   = 400
	)
	s := testapp.New(t, func(b *config.Config) {
		b.Policy.Schedule = backoff.Schedule{100 * time.Millisecond, 200 * time.Millisecond}
	})
	var w waits
	var mu sync.Mutex
	from, late, good := map[string]time.Time{}, map[string]time.Duration{}, map[string][]time.Duration{}
	done, passed := testapp.NewLedger(), testapp.NewLedger()
	quick := func(topic string, msg *message.Message) {
		good[topic] = append(good[topic], time.Since(from[msg.UUID]))
		passed.Add(msg.UUID)
	}
	s.Observe(eventtest.OnEvent(w.observe))
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		began, seen := from[msg.UUID]
		switch {
		case strings.HasPrefix(msg.UUID, "good"):
			quick("orders", msg)
		case !seen:
			from[msg.UUID] = time.Now()
			return backoff.RetryAfter(errDown, requested)
		default:
			late[msg.UUID] = time.Since(began) - requested
			done.Add(msg.UUID)
		}
		return nil
	}, retry.Options{})
	s.AddConsumerHandler(s.Router, "mailing", s.Queue("mails"), func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		quick("mails", msg)
		return nil
	})
	s.Run()

	all := testapp.Messages(testapp.IDs(delayed)...)
	mu.Lock()
	for i, msg := range all {
		if i%2 == 0 {
			delay.Message(msg, delay.For(requested))
			from[msg.UUID] = time.Now()
		}
	}
	mu.Unlock()
	require.NoError(t, s.Publisher().Publish(s.Queue("orders"), all...))
	// One after the other, to the busy handler and to one that has nothing else.
	for began, published := time.Now(), 0; time.Since(began) < requested; {
		for _, topic := range []string{"orders", "mails"} {
			uuid := "good " + testapp.ID(published)
			mu.Lock()
			from[uuid] = time.Now()
			mu.Unlock()
			s.Publish(s.Queue(topic), uuid)
			published++
			passed.Wait(t, published, soon)
		}
	}
	done.Wait(t, delayed, 2*soon)
	assert.Empty(t, done.Twice())
	testapp.Eventually(t, func() bool { return w.len() >= 10*delayed }, "Observe runs after the confirm")

	mu.Lock()
	defer mu.Unlock()
	var lateness []time.Duration
	for uuid, by := range late {
		assert.GreaterOrEqual(t, by, broker.Least(requested)-requested, uuid)
		assert.Less(t, by, 10*time.Second, uuid)
		lateness = append(lateness, by)
		assert.Equal(t, slices.Repeat([]string{"1s"}, 10), w.of(uuid), uuid)
	}
	slices.Sort(lateness)
	median := func(topic string) time.Duration {
		slices.Sort(good[topic])
		return good[topic][len(good[topic])/2]
	}
	beside, alone := median("orders"), median("mails")
	assert.Less(t, beside, 2*alone+100*time.Millisecond, "good messages wait for places")
	t.Logf("late: median %v, most %v; %d good messages: %v, of a handler without delayed messages %v",
		lateness[delayed/2], lateness[delayed-1], len(good["orders"]), beside, alone)
}

// TestARoundCostsMilliseconds: what a requested delay is late by, without load. The least of some messages is free of
// what else the machine does.
func TestARoundCostsMilliseconds(t *testing.T) {
	t.Parallel()
	const (
		requested = 1900 * time.Millisecond
		rounds    = 10 // on 1s, and nine times on 100ms
	)
	s := testapp.New(t, func(b *config.Config) { b.Policy.Schedule = backoff.Schedule{100 * time.Millisecond} })
	var w waits
	late := make(chan time.Duration, 1)
	from := map[string]time.Time{}
	s.Observe(eventtest.OnEvent(w.observe))
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		if testapp.Failures(msg) == 0 {
			from[msg.UUID] = time.Now()
			return backoff.RetryAfter(errDown, requested)
		}
		late <- time.Since(from[msg.UUID]) - requested
		return nil
	}, retry.Options{Concurrency: 1})
	s.Run()
	var all []time.Duration
	for _, uuid := range testapp.IDs(4) {
		s.Publish(s.Queue("orders"), uuid)
		all = append(all, <-late/rounds)
		testapp.Eventually(t, func() bool { return len(w.of(uuid)) >= rounds }, "Observe runs after the confirm")
		assert.Len(t, w.of(uuid), rounds)
	}
	slices.Sort(all)
	t.Log("late for each round:", all)
	assert.Less(t, all[0], 100*time.Millisecond)
}
