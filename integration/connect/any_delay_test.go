package connect_test

import (
	"fmt"
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
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// grouped makes all work queues share their tiers, with the ladder of a group.
func grouped(b *config.Config) {
	b.Policy.TierGroup, b.Policy.Schedule = b.Prefix+"_group", backoff.Schedule{2 * time.Second, 5 * time.Second}
}

// waits has the tiers on which each message has waited, in their order.
type waits struct {
	mu    sync.Mutex
	tiers map[string][]string
}

func (w *waits) observe(e retry.Event) {
	if e.Outcome == retry.Retried || e.Outcome == retry.Parked {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.tiers == nil {
			w.tiers = map[string][]string{}
		}
		w.tiers[e.MessageUUID] = append(w.tiers[e.MessageUUID], e.Tier.String())
	}
}

func (w *waits) of(uuid string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tiers[uuid]
}

func (w *waits) len() (all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tiers := range w.tiers {
		all += len(tiers)
	}
	return all
}

// TestRequestedDelaysOnTheLadderOfAGroup: mixed delays, some of them no whole seconds. No message comes early, and each
// takes the publishes that Simulate has.
func TestRequestedDelaysOnTheLadderOfAGroup(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, grouped)
	requests := map[string]time.Duration{"7500ms": 7500 * time.Millisecond, "5001ms": 5001 * time.Millisecond,
		"10ms": 10 * time.Millisecond}
	for n := range 8 {
		requests[fmt.Sprint(n+1, "s")] = time.Duration(n+1) * time.Second
	}
	var w waits
	var mu sync.Mutex
	failed, waited := map[string]time.Time{}, map[string]time.Duration{}
	done := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if at, again := failed[msg.UUID]; again {
			waited[msg.UUID] = time.Since(at)
			done.Add(msg.UUID)
			return nil
		}
		failed[msg.UUID] = time.Now()
		return backoff.RetryAfter(errDown, requests[msg.UUID])
	})
	s.Observe(eventtest.OnEvent(w.observe))
	s.Run()
	for uuid := range requests {
		s.Publish(s.Queue("orders"), uuid)
	}
	done.Wait(t, len(requests), 2*soon)
	assert.Empty(t, done.Twice())

	b := testapp.Config(t)
	grouped(&b)
	builder, err := config.NewBuilder(b)
	require.NoError(t, err)
	simulated, err := builder.NewTieredRetry(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, builder.Close()) })
	for uuid, requested := range requests {
		assert.GreaterOrEqual(t, waited[uuid], broker.Least(requested), uuid)
		var want []string
		handle := func(call int) error {
			if call == 1 {
				return backoff.RetryAfter(errDown, requested)
			}
			return nil
		}
		for _, e := range simulated.Simulate(backend.SimulatedMessage{Handle: handle}) {
			if e.Outcome == retry.Retried || e.Outcome == retry.Parked {
				want = append(want, e.Tier.String())
			}
		}
		// Observe runs after the confirm: the message may be back before.
		testapp.Eventually(t, func() bool { return len(w.of(uuid)) >= len(want) }, "%s", uuid)
		assert.Equal(t, want, w.of(uuid), uuid)
		assert.LessOrEqual(t, len(want), 5, "%s: at most four for whole seconds, and one for the rest", uuid)
	}
}

// TestDelayedMessages: a message that the app publishes with the metadata of components/delay comes to each consumer
// group when its delay is over, with no failure, and its first failure waits by the schedule.
func TestDelayedMessages(t *testing.T) {
	t.Parallel()
	const delayed = 3 * time.Second
	for name, row := range map[string]struct {
		change []func(*config.Config)
		groups []string
	}{
		"queue":                     {nil, []string{""}},
		"queue of a group of tiers": {[]func(*config.Config){grouped}, []string{""}},
		"fan-out":                   {[]func(*config.Config){testapp.FanOut, grouped}, []string{"billing", "mailing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testapp.New(t, append(row.change,
				func(b *config.Config) { b.Policy.Schedule = backoff.Schedule{time.Second} })...)
			var mu sync.Mutex
			published, after := map[string]time.Time{}, map[string]time.Duration{}
			calls, done := testapp.NewLedger(), testapp.NewLedger()
			for _, group := range row.groups {
				s.AddConsumerHandler(s.Router, "handler "+group, s.Queue("orders"), func(msg *message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					if calls.Add(group+" "+msg.UUID) == 1 {
						after[group+" "+msg.UUID] = time.Since(published[msg.UUID])
						assert.Zero(t, testapp.Failures(msg))
						return errDown
					}
					assert.Equal(t, 1, testapp.Failures(msg))
					done.Add(group + " " + msg.UUID)
					return nil
				}, retry.Options{Group: group})
			}
			s.Run()
			delays, err := delay.NewPublisher(s.Publisher(), delay.PublisherConfig{AllowNoDelay: true})
			require.NoError(t, err)
			for uuid, by := range map[string]func() delay.Delay{
				"for": func() delay.Delay { return delay.For(delayed) }, "until": func() delay.Delay { return delay.Until(time.Now().Add(delayed)) },
			} {
				mu.Lock()
				published[uuid] = time.Now()
				mu.Unlock()
				msg := message.NewMessage(uuid, nil)
				msg.SetContext(delay.WithContext(t.Context(), by()))
				require.NoError(t, delays.Publish(s.Queue("orders"), msg))
			}
			done.Wait(t, 2*len(row.groups), soon)
			for _, group := range row.groups {
				for _, uuid := range []string{"for", "until"} {
					key := group + " " + uuid
					assert.GreaterOrEqual(t, after[key], broker.Least(delayed), key)
					assert.Equal(t, 2, calls.Counts()[key], key)
				}
			}
			assert.Empty(t, done.Twice())
		})
	}
}

// TestDelayOfTwelveDaysWaitsOnTheLongestTier of the ladder of a group. Its record has what remains.
func TestDelayOfTwelveDaysWaitsOnTheLongestTier(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, grouped)
	var w waits
	s.Observe(eventtest.OnEvent(w.observe))
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(*message.Message) error {
		t.Error("the handler is called")
		return nil
	}, retry.Options{})
	s.Run()
	msg := message.NewMessage("late", []byte("order"))
	delay.Message(msg, delay.For(12*24*time.Hour))
	require.NoError(t, s.Publisher().Publish(s.Queue("orders"), msg))
	testapp.Eventually(t, func() bool { return len(w.of("late")) == 1 }, "it is parked")
	assert.Equal(t, []string{"213h"}, w.of("late"))
	copied := testapp.Take(t, s.Name+"_group."+s.Name+".213h", 1)[0]
	assert.Equal(t, "order", string(copied.Body))
	assert.Equal(t, "213h."+s.Queue("orders"), copied.RoutingKey)
	record, _ := copied.Headers["retry_record"].(string)
	assert.Contains(t, record, ":75h", "what remains: 288h - 213h")
	assert.Contains(t, record, "a24:2", "when it arrived")
}
