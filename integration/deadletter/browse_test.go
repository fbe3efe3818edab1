package deadletter_test

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestListingsLoseNothing: a listing gives each letter back. Up to RabbitMQ 4.2 a quorum queue counts that, and
// drops a message beyond its delivery limit, which is 20 from 4.0 on.
func TestListingsLoseNothing(t *testing.T) {
	t.Parallel()
	const count, listings = 40, 25
	for name, queue := range map[string]func(t *testing.T, a *testapp.App) string{
		"of the library": func(t *testing.T, a *testapp.App) string {
			bury(t, a, a.Queue("orders"), count)
			return deadletter.QueueOf(a.Queue("orders"))
		},
		"quorum, with the broker's limit": func(t *testing.T, a *testapp.App) string {
			declare(t, a.Queue("poison"), amqp091.Table{"x-queue-type": "quorum"})
			testapp.Send(t, "", a.Queue("poison"), testapp.Orders(count)...)
			return a.Queue("poison")
		},
		"classic": func(t *testing.T, a *testapp.App) string {
			declare(t, a.Queue("poison"), amqp091.Table{"x-queue-type": "classic"})
			testapp.Send(t, "", a.Queue("poison"), testapp.Orders(count)...)
			return a.Queue("poison")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t)
			letterQueue := queue(t, a)
			store := open(t, broker.URL(t), a.Name)
			for range listings {
				require.Equal(t, upTo(count), ids(list(t, store, letterQueue)))
			}
			require.NoError(t, store.Close())
			require.Equal(t, count, testapp.Depth(t, letterQueue))
			var left []string
			for _, d := range testapp.Take(t, letterQueue, count) {
				left = append(left, d.Headers["_watermill_message_uuid"].(string))
				assert.Equal(t, "order "+left[len(left)-1], string(d.Body))
			}
			assert.Equal(t, upTo(count), left)
		})
	}
}

// TestLooksKeepTheOrder of more letters than are replaced by copies at the same time, where the limit is not known. From
// the second look on they are replaced.
func TestLooksKeepTheOrder(t *testing.T) {
	t.Parallel()
	const count, looks = 150, 8
	for name, arguments := range map[string]amqp091.Table{
		"with a limit":    {"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)},
		"without a limit": {"x-queue-type": "quorum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := broker.Name(t, "poison")
			broker.Clean(t, queue)
			declare(t, queue, arguments)
			testapp.Send(t, "", queue, testapp.Orders(count)...)
			store := open(t, broker.URL(t), "retry")
			for i := range looks {
				require.Equal(t, upTo(count), ids(list(t, store, queue)), "look %d", i)
			}
		})
	}
}

func TestALoopThatEndsEarlyGivesAllBack(t *testing.T) {
	t.Parallel()
	const count = 300 // more than one consumer fetches
	a := testapp.New(t)
	queue := a.Queue("orders")
	bury(t, a, queue, count)
	letterQueue, store := deadletter.QueueOf(queue), open(t, broker.URL(t), a.Name)
	for _, last := range []int{1, 63, 64, 65, 200} {
		seen := 0
		for _, err := range store.Browse(t.Context(), letterQueue, letters.Filter{}) {
			require.NoError(t, err)
			if seen++; seen == last {
				break
			}
		}
		require.Equal(t, count, testapp.Depth(t, letterQueue), "after %d", last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, failed := 0, error(nil)
	for l, err := range store.Browse(ctx, letterQueue, letters.Filter{}) {
		if failed = err; err != nil {
			assert.Nil(t, l)
			continue
		}
		if seen++; seen == 10 {
			cancel()
		}
	}
	require.ErrorIs(t, failed, context.Canceled)
	assert.Less(t, seen, count)
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, letterQueue) == count }, "all is given back")
	all := ids(list(t, store, letterQueue))
	slices.Sort(all) // a quorum queue has what was given back before in front of what is given back now
	assert.Equal(t, upTo(count), all)

	var found []string
	for l, err := range store.Browse(t.Context(), letterQueue,
		letters.Filter{IDs: []string{testapp.ID(7), testapp.ID(250)}}) {
		require.NoError(t, err)
		found = append(found, l.ID)
	}
	assert.ElementsMatch(t, []string{testapp.ID(7), testapp.ID(250)}, found)
}

func TestBrowseSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	store := open(t, broker.URL(t), a.Name)
	first := func(s *deadletter.Store, queue string, filter letters.Filter) (failed error) {
		for _, err := range s.Browse(t.Context(), queue, filter) {
			failed = err
		}
		return failed
	}
	missing := deadletter.QueueOf(a.Queue("missing"))
	err := first(store, missing, letters.Filter{})
	require.ErrorIs(t, err, letters.ErrNoQueue)
	require.ErrorContains(t, err, missing)
	_, err = store.Redrive(t.Context(), missing, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue)
	_, err = store.Discard(t.Context(), missing, letters.Discard{})
	require.ErrorIs(t, err, letters.ErrNoQueue)
	require.ErrorContains(t, first(store, missing, letters.Filter{OlderThan: -1}), "Filter.OlderThan")
	_, err = store.Redrive(t.Context(), missing,
		letters.Redrive{Rate: -1, Filter: letters.Filter{Reason: regexp.MustCompile("a")}})
	require.ErrorContains(t, err, "Redrive.Rate")

	require.NoError(t, store.Close())
	require.NoError(t, store.Close())
	require.ErrorIs(t, first(store, missing, letters.Filter{}), letters.ErrClosed)
	_, err = store.Redrive(t.Context(), missing, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrClosed)
}

// TestALoopThatEndsEarlyKeepsTheOrder: a quorum queue puts what it gets back behind what it got back before.
func TestALoopThatEndsEarlyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const count = 300
	a := testapp.New(t)
	queue := a.Queue("parked")
	declare(t, queue, amqp091.Table{"x-queue-type": "quorum"})
	testapp.Send(t, "", queue, testapp.Orders(count)...)
	broker.Eventually(t, time.Minute, func() bool { return testapp.Depth(t, queue) == count }, "the letters")
	stated(t, queue)
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Management: broker.ManagementURL(t)},
		nil) // the limit is known
	require.NoError(t, err)
	defer store.Close()
	for range 4 {
		first := ""
		for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
			require.NoError(t, err)
			first = l.ID
			break
		}
		assert.Equal(t, "00000", first)
	}
	summary, err := store.Discard(t.Context(), queue, letters.Discard{Limit: 3})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: 3, Unseen: count - 3}, summary)
	var left []string
	for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
		require.NoError(t, err)
		left = append(left, l.ID)
	}
	require.Len(t, left, count-3)
	assert.IsNonDecreasing(t, left)
}
