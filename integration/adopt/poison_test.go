package adopt

import (
	"context"
	"hash/crc32"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestFromRetryAndPoisonQueue: an app with these two on its router adopts the library under traffic, and so does one that has
// DelayOnError and a Requeuer, too, with the parts.
func TestFromRetryAndPoisonQueue(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][2]build{
		"Retry and PoisonQueue, Connect": {connectedOnly, connected}, "all four, parts": {subscriberOnly, withMiddleware},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			d.schedule = backoff.Schedule{300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond}
			d.fails = func(identity string, call int) bool { // some more often than an old instance tries
				sum := crc32.ChecksumIEEE([]byte(identity))
				return sum%10 == 0 && call == 1 || sum%20 == 0 && call == 2 || sum%40 == 0 && call == 3
			}
			d.declare()
			poisoned := d.queue + ".poison"
			all := steps[0] == subscriberOnly
			old := func(b build) *instance {
				i := d.instance(b)
				i.middlewares = retryAndPoison(t, poisoned)
				if all {
					delays := watermillmw.DelayOnError{InitialInterval: 100 * time.Millisecond, MaxInterval: time.Second, Multiplier: 2}
					i.middlewares = append(i.middlewares, delays.Middleware)
				}
				return i.start()
			}
			before := []*instance{old(stock), old(stock)}
			f := d.send(300)
			work(t, 10, before...)
			broker.Eventually(t, patience, func() bool { return testapp.Depth(t, poisoned) > 0 }, "the poison queue is in use")
			stopRequeuer := func() {}
			if all {
				stopRequeuer = d.startRequeuer(poisoned)
			}

			// Step 1: every instance gets the library's subscriber, and keeps Retry and PoisonQueue.
			first := []*instance{old(steps[0])}
			work(t, 10, before[0], before[1], first[0])
			before[0].stop()
			first = append(first, old(steps[0]))
			before[1].stop()
			work(t, 10, first...)

			// Step 2: every instance gets the middleware, in the place of Retry and PoisonQueue.
			second := []*instance{d.start(steps[1])}
			work(t, 10, first[0], first[1], second[0])
			broker.Eventually(t, patience, func() bool { return first[0].returned.Load() > 0 && first[1].returned.Load() > 0 },
				"instances of step 1 process what comes back from a tier")
			first[0].stop()
			second = append(second, d.start(steps[1]))
			first[1].stop()
			work(t, 20, second...)

			// Step 3: nothing more comes to the poison queue. Its letters go back to the work queue.
			if all {
				d.waitUntilEmpty(poisoned)
				stopRequeuer()
				require.Zero(t, testapp.Depth(t, poisoned), "what the Requeuer had is not given back")
			} else {
				d.redrive(f, poisoned)
			}

			// Step 4: the poison queue is empty, and is deleted.
			assert.Contains(t, broker.Ctl(t, "delete_queue", poisoned), "0 ready")

			d.balance(f, append(d.tiers(), d.queue, d.queue+".dead", d.prefix+".orphans")...)
		})
	}
}

// redrive sends the letters of a poison queue back to the work queue.
func (d *deployment) redrive(f *traffic, poisoned string) {
	t := d.t
	t.Helper()
	left := testapp.Depth(t, poisoned)
	f.more(40)
	assert.Equal(t, left, testapp.Depth(t, poisoned))
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: d.prefix}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	for l, err := range store.Browse(context.Background(), poisoned, letters.Filter{}) {
		require.NoError(t, err)
		assert.Equal(t, letters.Poison, l.Kind)
		assert.Equal(t, errDown.Error(), l.Record.Reason)
		assert.Equal(t, d.queue, l.Target)
	}
	summary, err := store.Redrive(context.Background(), poisoned, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: left, Done: left}, summary)
}

// startRequeuer moves messages from the poison queue to the work queue, until it is stopped.
func (d *deployment) startRequeuer(poisoned string) (stop func()) {
	t := d.t
	t.Helper()
	own := amqp.NewDurableQueueConfig(broker.URL(t))
	own.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(own, &testapp.Log{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	subscriber, err := amqp.NewSubscriber(own, &testapp.Log{})
	require.NoError(t, err)
	router := message.NewDefaultRouter(&testapp.Log{})
	_, err = requeuer.NewRequeuer(requeuer.Config{
		Subscriber: subscriber, SubscribeTopic: poisoned, Publisher: publisher, Router: router, Delay: 10 * time.Millisecond,
		GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return d.queue, nil },
	}, &testapp.Log{})
	require.NoError(t, err)
	return testapp.Start(t, router)
}

// retryAndPoison are the middlewares of a router without the library, in the usual order.
func retryAndPoison(t testing.TB, queue string) []message.HandlerMiddleware {
	t.Helper()
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	publishing := amqp.NewDurableQueueConfig(broker.URL(t))
	publishing.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(publishing, &testapp.Log{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	poison, err := watermillmw.PoisonQueue(publisher, queue)
	require.NoError(t, err)
	retry := watermillmw.Retry{MaxRetries: 1, InitialInterval: 10 * time.Millisecond, Multiplier: 1, MaxInterval: time.Second}
	return []message.HandlerMiddleware{poison, retry.Middleware}
}
