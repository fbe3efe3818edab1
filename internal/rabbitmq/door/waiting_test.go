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

func lookoutOf(change func(*lookoutConfig)) *lookout {
	config := lookoutConfig{
		Prefix: "retry", WorkQueues: func() map[string][]string { return twoWorks },
		Channel: func() (*amqp091.Channel, error) { return nil, errors.New("there is no connection") },
	}
	if change != nil {
		change(&config)
	}
	return newLookout(config)
}

func TestQueuesOfALook(t *testing.T) {
	l := lookoutOf(nil)
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

	assert.Empty(t, lookoutOf(func(c *lookoutConfig) { c.WorkQueues = func() map[string][]string { return nil } }).queues())
}

// The figures of the management API are enough without a connection.
func TestLookWithoutAConnection(t *testing.T) {
	l := lookoutOf(func(c *lookoutConfig) {
		c.Read = func(context.Context) (map[string]management.Depth, error) {
			return map[string]management.Depth{"orders": {Messages: 2}, "orders.dead": {Messages: 3}, "other": {}}, nil
		}
	})
	all, err := l.waiting(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []retry.Waiting{
		{Kind: retry.WaitingDead, Queue: "orders.dead", Messages: 3}, {Kind: retry.WaitingWork, Queue: "orders", Messages: 2},
	}, all)

	l.config.Read = func(context.Context) (map[string]management.Depth, error) { return nil, errors.New("refused") }
	_, err = l.waiting(t.Context())
	require.ErrorContains(t, err, "refused")
	require.ErrorContains(t, err, "there is no connection")

	l.config.WorkQueues = func() map[string][]string { panic("broken") }
	_, err = l.waiting(t.Context())
	require.ErrorContains(t, err, "the look at the queues panicked: broken")
}

// One look at a time waits for a broker that does not answer. Those that come after it end with their deadlines.
func TestLooksDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		answer := make(chan struct{})
		l := lookoutOf(func(c *lookoutConfig) {
			c.Channel = func() (*amqp091.Channel, error) {
				opened.Add(1)
				<-answer
				return nil, errors.New("there is no connection")
			}
		})
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
		assert.EqualValues(t, 1, opened.Load())
		close(answer)
		synctest.Wait()
		_, err = l.waiting(t.Context())
		require.ErrorContains(t, err, "there is no connection")
		assert.EqualValues(t, 2, opened.Load())
	})
}
