package relay_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// A watcher is an Observer that keeps what it gets.
type watcher struct {
	backend.NopObserver
	mu        sync.Mutex
	observed  backend.Observed
	events    []retry.Event
	published []backend.Published
}

func (w *watcher) Attach(o backend.Observed) (backend.Observer, error) {
	w.observed = o
	return nil, nil
}

func (w *watcher) Event(e retry.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *watcher) Published(p backend.Published) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published = append(w.published, p)
}

// What waits is what this process keeps, for each tier, with the exact time at which the first message is due.
func TestWaitingOfARelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const second, hour = backoff.Tier(time.Second), backoff.Tier(time.Hour)
		c := newApp(t, backoff.Schedule{time.Second, time.Hour})
		w := &watcher{}
		c.Observe(w)
		c.handle("billing", func(*message.Message) error { return errDown })
		waiting := func() []backend.Waiting {
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
		tier := func(of backoff.Tier, messages int, next time.Time) backend.Waiting {
			return backend.Waiting{Kind: backend.WaitingTier, Queue: "retry." + of.String(), Tier: of, Messages: messages, NextDue: next}
		}
		none := time.Time{}
		assert.Equal(t, []backend.Waiting{tier(second, 0, none), tier(hour, 0, none)}, waiting())

		c.publish("1")
		synctest.Wait()
		time.Sleep(300 * time.Millisecond)
		c.publish("2")
		c.publish("3")
		synctest.Wait()
		assert.Equal(t, []backend.Waiting{tier(second, 3, due(time.Second)), tier(hour, 0, none)}, waiting())

		time.Sleep(800 * time.Millisecond) // the first one has come back, and has failed again
		synctest.Wait()
		all := waiting()
		require.Len(t, all, 2)
		assert.Equal(t, tier(second, 2, due(1300*time.Millisecond)), all[0])
		assert.Equal(t, 1, all[1].Messages)
		assert.WithinRange(t, all[1].NextDue, began.Add(time.Hour+time.Second), began.Add(time.Hour+time.Second+10*time.Millisecond))

		time.Sleep(time.Minute) // what it waits on does not change when it is due
		synctest.Wait()
		later := waiting()
		assert.Equal(t, []backend.Waiting{tier(second, 0, none), tier(hour, 3, all[1].NextDue)}, later)
		c.close()
		assert.Empty(t, waiting(), "nothing runs any more")
		select {
		case <-w.observed.Closed:
		default:
			t.Error("Closed is not closed")
		}
		assert.ElementsMatch(t, [][]any{{false, backend.PublishConfirmed, 1}, {true, backend.PublishConfirmed, 1}},
			[][]any{resultOf(w.published[0]), resultOf(w.published[1])}, "a message can fail before its publish returns")
		require.Error(t, c.Publisher().Publish("orders", orderOf("4")))
		assert.Equal(t, []any{false, backend.PublishFailed, 1}, resultOf(w.published[len(w.published)-1]))
	})
}

func resultOf(p backend.Published) []any { return []any{p.Copy, p.Result, p.Messages} }
