package relay_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// A watcher is an Observer that keeps what it gets.
type watcher struct {
	retry.NopObserver
	mu        sync.Mutex
	observed  retry.Observed
	events    []retry.Event
	published []retry.Published
}

func (w *watcher) Attach(o retry.Observed) (retry.Observer, error) {
	w.observed = o
	return eventtest.Hooks{
		OnEvent: func(e retry.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
		OnPublished: func(p retry.Published) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.published = append(w.published, p)
		},
	}, nil
}

// What waits is what this process keeps, for each tier, with the exact time at which the first message is due.
func TestWaitingOfARelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const second, hour = backoff.Tier(time.Second), backoff.Tier(time.Hour)
		c := connect(t, func(config *relay.ConnectConfig) { config.Policy.Schedule = backoff.Schedule{time.Second, time.Hour} })
		w := &watcher{}
		c.Observe(w)
		c.AddConsumerHandler(c.router, "billing", "orders", func(*message.Message) error { return errDown })
		waiting := func() []retry.Waiting {
			t.Helper()
			all, err := w.observed.Waiting(t.Context())
			require.NoError(t, err)
			return all
		}
		assert.Empty(t, waiting(), "no tier is subscribed yet")
		c.run()
		began := time.Now()
		due := func(after time.Duration) time.Time { // a record has whole milliseconds, and a message is never early
			return began.Add(after).Truncate(time.Millisecond).Add(time.Millisecond).UTC()
		}
		tier := func(of backoff.Tier, messages int, next time.Time) retry.Waiting {
			return retry.Waiting{Kind: retry.WaitingTier, Queue: "retry." + of.String(), Tier: of, Messages: messages, NextDue: next}
		}
		none := time.Time{}
		assert.Equal(t, []retry.Waiting{tier(second, 0, none), tier(hour, 0, none)}, waiting())

		c.publish("orders", "1")
		synctest.Wait()
		time.Sleep(300 * time.Millisecond)
		c.publish("orders", "2")
		c.publish("orders", "3")
		synctest.Wait()
		assert.Equal(t, []retry.Waiting{tier(second, 3, due(time.Second)), tier(hour, 0, none)}, waiting())

		time.Sleep(800 * time.Millisecond) // the first one has come back, and has failed again
		synctest.Wait()
		all := waiting()
		require.Len(t, all, 2)
		assert.Equal(t, tier(second, 2, due(1300*time.Millisecond)), all[0])
		assert.Equal(t, 1, all[1].Messages)
		assert.WithinRange(t, all[1].NextDue, began.Add(time.Hour+time.Second), began.Add(time.Hour+time.Second+10*time.Millisecond))

		time.Sleep(time.Minute) // hops do not change when it is due
		synctest.Wait()
		later := waiting()
		assert.Equal(t, []retry.Waiting{tier(second, 0, none), tier(hour, 3, all[1].NextDue)}, later)
		c.close()
		assert.Empty(t, waiting(), "nothing runs any more")
		select {
		case <-w.observed.Closed:
		default:
			t.Error("Closed is not closed")
		}
	})
}

// A message without a record does not wait, and does no harm.
func TestWaitingOfAForeignMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t)
		w := &watcher{}
		c.Observe(w)
		c.AddConsumerHandler(c.router, "billing", "orders", func(*message.Message) error { return nil })
		fail := func(err error) {
			c.publisher.mu.Lock()
			defer c.publisher.mu.Unlock()
			c.publisher.fail = func(string, int) error { return err }
		}
		fail(errors.New("down")) // so that it stays
		c.run()
		before := time.Now()
		require.NoError(t, c.pubSub.Publish("retry.1s", message.NewMessage("foreign", nil)))
		synctest.Wait()
		all, err := w.observed.Waiting(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		assert.Equal(t, 1, all[0].Messages)
		assert.Equal(t, before, all[0].NextDue)
		fail(nil)
		c.close()
	})
}

// The results of both publishers, and the events.
func TestObserverOfARelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t)
		w := &watcher{}
		f := newFailsOnce()
		c.AddConsumerHandler(c.router, "billing", "orders", f.handle(3))
		c.Observe(w) // also after the handler was added
		c.run()
		for i := range 3 {
			c.publish("orders", fmt.Sprint(i))
		}
		<-f.done
		synctest.Wait()
		outcomes := map[retry.Outcome]int{}
		for _, e := range w.events {
			outcomes[e.Outcome]++
			if e.Outcome == retry.Recovered {
				assert.Equal(t, backoff.Tier(time.Second), e.Arrived)
			}
		}
		assert.Equal(t, map[retry.Outcome]int{retry.Retried: 3, retry.Recovered: 3}, outcomes)
		results := map[string]int{}
		for _, p := range w.published {
			results[fmt.Sprint(p.Topic, " ", p.Copy, " ", p.Result)] += p.Messages
		}
		assert.Equal(t, map[string]int{"orders false confirmed": 3, "retry.1s true confirmed": 3}, results)
		assert.Equal(t, c.Health(), w.observed.Health())
		for _, s := range w.observed.Health().Subscriptions {
			assert.Zero(t, s.Deliveries)
		}
		c.close()
		require.Error(t, c.Publisher().Publish("orders", orderOf("4")))
		last := w.published[len(w.published)-1]
		assert.Equal(t, []any{false, retry.PublishFailed, 1}, []any{last.Copy, last.Result, last.Messages})
	})
}
