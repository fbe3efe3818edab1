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

// TestFromRetryAndPoisonQueue: an app with these two on its router adopts the library under traffic, goes the way back
// after each step, and forward again. An app that also has DelayOnError and a Requeuer adopts the builder.
func TestFromRetryAndPoisonQueue(t *testing.T) {
	t.Parallel()
	for name, all := range map[string]bool{"Retry and PoisonQueue, Connect": false, "all four, builder": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fromWatermill(t, all)
		})
	}
}

func fromWatermill(t *testing.T, all bool) {
	t.Helper()
	d := newDeployment(t)
	d.schedule = backoff.Schedule{300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond}
	d.fails = func(identity string, call int) bool { // some more often than an old instance tries
		sum := crc32.ChecksumIEEE([]byte(identity))
		return sum%10 == 0 && call == 1 || sum%20 == 0 && call == 2 || sum%40 == 0 && call == 3
	}
	d.declare()
	poisoned, steps := d.queue+".poison", [2]build{connectedOnly, connected}
	if all {
		steps = [2]build{subscriberOnly, withMiddleware}
	}
	middlewares := watermills(t, poisoned, all)
	d.prepare = func(i *instance) {
		if i.build != steps[1] {
			i.middlewares = middlewares
		}
	}
	poisons := func() {
		t.Helper()
		broker.Eventually(t, patience, func() bool { return testapp.Depth(t, poisoned) > 0 }, "the poison queue is in use")
	}
	before := d.both(stock)
	f := d.send(300)
	work(t, 10, before...)
	poisons()
	stopRequeuer := func() {}
	if all {
		stopRequeuer = d.startRequeuer(poisoned)
	}

	// Step 1: every instance gets the library's subscriber, and keeps Watermill's components.
	first := d.replace(before, steps[0])
	if !all {
		before = d.both(stock)
		stop(first)
		work(t, 10, before...)
		first = d.both(steps[0])
		stop(before)
	}

	// Step 2: every instance gets the middleware, in their place.
	second := d.replace(first, steps[1], func(*instance) { returnsTo(t, first...) })
	if !all {
		d.waitUntilReady(d.tiers()...)
		first = d.both(steps[0])
		stop(second)
		work(t, 10, first...)
		second = d.both(steps[1])
		stop(first)
	}

	// Step 3: nothing more comes to the poison queue. Its letters go back to the work queue.
	if all {
		d.waitUntilEmpty(poisoned)
		stopRequeuer()
		require.Zero(t, testapp.Depth(t, poisoned), "what the Requeuer had is not given back")
	} else {
		d.redrive(f, poisoned)
	}

	// Step 4: the poison queue is empty, and is deleted.
	deleted, err := broker.Channel(t).QueueDelete(poisoned, false, false, false)
	require.NoError(t, err)
	assert.Zero(t, deleted)
	if !all {
		declare(t, poisoned)
		first = d.both(steps[0])
		stop(second)
		poisons()
		d.both(steps[1])
		stop(first)
		d.redrive(f, poisoned)
	}

	d.balance(f, append(d.tiers(), d.queue, d.queue+".dead", d.prefix+".orphans")...)
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

func declare(t testing.TB, queue string) {
	t.Helper()
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
}

// watermills are the middlewares of a router without the library, in the usual order.
func watermills(t testing.TB, queue string, all bool) []message.HandlerMiddleware {
	t.Helper()
	declare(t, queue)
	publishing := amqp.NewDurableQueueConfig(broker.URL(t))
	publishing.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(publishing, &testapp.Log{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	setAside, err := watermillmw.PoisonQueue(publisher, queue)
	require.NoError(t, err)
	retry := watermillmw.Retry{MaxRetries: 1, InitialInterval: 10 * time.Millisecond, Multiplier: 1, MaxInterval: time.Second}
	middlewares := []message.HandlerMiddleware{setAside, retry.Middleware}
	if all {
		delays := watermillmw.DelayOnError{InitialInterval: 100 * time.Millisecond, MaxInterval: time.Second, Multiplier: 2}
		middlewares = append(middlewares, delays.Middleware)
	}
	return middlewares
}
