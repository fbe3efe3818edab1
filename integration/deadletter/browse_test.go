package deadletter_test

import (
	"context"
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

// TestListingsLoseNothing, and keep the order of more letters than are replaced by copies at the same time: a listing
// gives each letter back. Up to RabbitMQ 4.2 a quorum queue counts that, and drops a message beyond its delivery limit,
// which is 20 from 4.0 on. Here the limit is not known: from the second listing on the letters are replaced.
func TestListingsLoseNothing(t *testing.T) {
	t.Parallel()
	const count = 150
	for name, row := range map[string]struct {
		arguments amqp091.Table
		listings  int
	}{
		"with the limit of the library": {amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}, 5},
		"with the broker's limit":       {amqp091.Table{"x-queue-type": "quorum"}, 25},
		"classic":                       {amqp091.Table{"x-queue-type": "classic"}, 5}, // it has no limit
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := broker.Name(t, "poison")
			broker.Clean(t, queue)
			declare(t, queue, row.arguments)
			testapp.Send(t, "", queue, testapp.Orders(count)...)
			store := open(t, broker.URL(t), "retry")
			for i := range row.listings {
				require.Equal(t, upTo(count), ids(list(t, store, queue)), "listing %d", i)
			}
			require.NoError(t, store.Close())
			var left []string
			for _, d := range testapp.Take(t, queue, count) {
				left = append(left, d.Headers["_watermill_message_uuid"].(string))
				assert.Equal(t, "order "+left[len(left)-1], string(d.Body))
			}
			assert.Equal(t, upTo(count), left)
		})
	}
}

// TestALoopThatEndsEarlyGivesAllBack, in the same order, also where the limit is known, and letters are not replaced: a
// quorum queue puts what it gets back behind what it got back before.
func TestALoopThatEndsEarlyGivesAllBack(t *testing.T) {
	t.Parallel()
	const count = 300 // more than one consumer fetches
	for name, management := range map[string]bool{"limit known": true, "limit not known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t)
			bury(t, a, a.Queue("orders"), count)
			queue, config := deadletter.QueueOf(a.Queue("orders")), deadletter.Config{URI: broker.URL(t), Prefix: a.Name}
			if management {
				stated(t, queue)
				config.Management = broker.ManagementURL(t)
			}
			store, err := deadletter.Open(config, nil)
			require.NoError(t, err)
			defer store.Close()
			for _, last := range []int{1, 63, 64, 65, 200} {
				seen := 0
				for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
					require.NoError(t, err)
					require.Equal(t, testapp.ID(seen), l.ID)
					if seen++; seen == last {
						break
					}
				}
				require.Equal(t, count, testapp.Depth(t, queue), "after %d", last)
			}
			const removed = 3
			summary, err := store.Discard(t.Context(), queue, letters.Discard{Limit: removed})
			require.NoError(t, err)
			assert.Equal(t, letters.Summary{Total: count, Done: removed, Unseen: count - removed}, summary)
			assert.Equal(t, upTo(count)[removed:], ids(list(t, store, queue)))

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			seen, failed := 0, error(nil)
			for l, err := range store.Browse(ctx, queue, letters.Filter{}) {
				if failed = err; err != nil {
					assert.Nil(t, l)
					continue
				}
				if seen++; seen == 10 {
					cancel()
				}
			}
			require.ErrorIs(t, failed, context.Canceled)
			assert.Less(t, seen, count-removed)
			broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue) == count-removed }, "all is given back")
			// A quorum queue has what was given back before in front of what is given back now.
			assert.ElementsMatch(t, upTo(count)[removed:], ids(list(t, store, queue)))
		})
	}
}

// TestTheOrderOfWhatACanaryLeaves: letters of a basic.get and of a consumer are given back in two nacks. RabbitMQ gives
// back what one nack has in the order of the consumers, and takes a basic.get for the first one.
func TestTheOrderOfWhatACanaryLeaves(t *testing.T) {
	t.Parallel()
	const count, canary, fetched = 30, 3, 8
	a := testapp.New(t)
	bury(t, a, a.Queue("orders"), count)
	queue, store := deadletter.QueueOf(a.Queue("orders")), open(t, broker.URL(t), a.Name)
	_, err := broker.Channel(t).Consume(a.Queue("orders"), "", true, false, false, false, nil) // a canary needs a consumer
	require.NoError(t, err)
	all := upTo(count)
	summary, err := store.Redrive(t.Context(), queue, letters.Redrive{
		Filter: letters.Filter{IDs: []string{all[0], all[2], all[4]}}, Canary: canary, CanaryWait: time.Second, Rate: 4,
		Progress: func(p letters.Progress) {
			if p.Phase == letters.Canary && p.Done == canary {
				broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue) == count-fetched-canary },
					"the consumer has the letters that the broker sends for those that were removed")
			}
		},
	})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: canary, Other: count - canary}, summary)
	assert.Equal(t, slices.Concat(all[1:2], all[3:4], all[5:]), ids(list(t, store, queue)))
}
