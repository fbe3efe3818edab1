package door

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/retry"
)

var twoWorks = map[string][]string{
	"orders": {"retry.orphans", "orders.dead", "orders.retry.1s", "orders.retry.1h"},
	"mails":  {"retry.orphans", "mails.dead", "shop.retry.5s", "mails.retry.inbox"},
	"bills":  {"retry.orphans", "bills.dead", "shop.retry.5s"},
}

// fakeAPI answers with depths or an error.
type fakeAPI struct {
	depths map[string]management.Depth
	err    error
	slow   bool // it does not answer
}

func (a *fakeAPI) Sources(context.Context) (map[string]bool, error) { return nil, a.err }

func (a *fakeAPI) Depths(ctx context.Context) (map[string]management.Depth, error) {
	if a.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return a.depths, a.err
}
func (a *fakeAPI) Queues(ctx context.Context) (map[string]management.Queue, error) {
	if a.slow {
		<-ctx.Done()
	}
	return nil, ctx.Err()
}

// noChannels is a connection that is lost. With an answer it says so when that is closed.
type noChannels struct {
	answer chan struct{}
	opened atomic.Int32
}

func (n *noChannels) Channel(context.Context) (*amqp091.Channel, error) {
	n.opened.Add(1)
	if n.answer != nil {
		<-n.answer
	}
	return nil, errors.New("there is no connection")
}

func lookoutOf(t *testing.T, works map[string][]string, api api) *lookout {
	return newLookout(t.Context(), &declarer{core: &core{prefix: "retry"}, works: works}, api, &noChannels{})
}

func TestQueuesOfALook(t *testing.T) {
	l := lookoutOf(t, twoWorks, nil)
	const work, dead, tier = retry.WaitingWork, retry.WaitingDead, retry.WaitingTier
	second := backoff.Tier(time.Second)
	want := []watchedQueue{
		{retry.WaitingOrphans, "retry.orphans", 0},
		{dead, "bills.dead", 0}, {dead, "mails.dead", 0}, {dead, "orders.dead", 0},
		{work, "bills", 0}, {work, "mails", 0}, {work, "orders", 0},
		{tier, "shop.retry.5s", 5 * second}, {retry.WaitingInbox, "mails.retry.inbox", 0},
		{tier, "orders.retry.1s", second}, {tier, "orders.retry.1h", 3600 * second},
	}
	assert.Equal(t, want, l.queues())

	// Of the others, the tiers of an earlier schedule belong to the connection, while they have messages.
	listed := map[string]management.Depth{
		"orders.retry.2s": {Messages: 1}, "orders.retry.3s": {}, "shop.retry.1m": {Messages: 2}, "other.retry.1s": {Messages: 1},
		"other": {Messages: 1}, "mails.retry.10s": {Messages: 1}, "orders.retry.1s": {Messages: 5},
	}
	want = append(want, watchedQueue{tier, "mails.retry.10s", 10 * second}, watchedQueue{tier, "orders.retry.2s", 2 * second},
		watchedQueue{tier, "shop.retry.1m", 60 * second})
	assert.Equal(t, want, l.retired(l.queues(), listed))

	assert.Empty(t, lookoutOf(t, nil, nil).queues())
}

// The figures of the management API are enough without a connection.
func TestLookWithoutAConnection(t *testing.T) {
	listed := &fakeAPI{depths: map[string]management.Depth{"orders": {Messages: 2}, "orders.dead": {Messages: 3}, "other": {}}}
	l := lookoutOf(t, twoWorks, listed)
	all, err := l.waiting(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []retry.Waiting{
		{Kind: retry.WaitingDead, Queue: "orders.dead", Messages: 3}, {Kind: retry.WaitingWork, Queue: "orders", Messages: 2},
	}, all)

	listed.depths, listed.err = nil, errors.New("refused")
	_, err = l.waiting(t.Context())
	require.ErrorContains(t, err, "refused")
	require.ErrorContains(t, err, "there is no connection")

	l.declarer = nil
	_, err = l.waiting(t.Context())
	require.ErrorContains(t, err, "the look at the queues panicked")
}

// A management API that hangs takes half of the time. Then the broker is asked.
func TestAnAPIThatHangsTakesHalfOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, began := lookoutOf(t, twoWorks, &fakeAPI{slow: true}), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := l.waiting(ctx)
		require.ErrorContains(t, err, "there is no connection")
		assert.Equal(t, 10*time.Second, time.Since(began))
	})
}

// One look at a time waits for a broker that does not answer. Those that come after it end with their deadlines.
func TestLooksDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connection := &noChannels{answer: make(chan struct{})}
		l := lookoutOf(t, twoWorks, nil)
		l.channels = connection
		began := time.Now()
		_, err := l.waiting(context.Background())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the broker has not answered in time")
		assert.Equal(t, lookTimeout, time.Since(began), "a caller without a deadline gets one")
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := l.waiting(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "an earlier look at the queues has not ended")
		}
		assert.EqualValues(t, 1, connection.opened.Load())
		close(connection.answer)
		synctest.Wait()
		_, err = l.waiting(t.Context())
		require.ErrorContains(t, err, "there is no connection")
		assert.EqualValues(t, 2, connection.opened.Load())
	})
}
