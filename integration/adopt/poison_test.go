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

// watermills are the components of Watermill that an app has, and the builds of its two steps.
type watermills struct {
	retry, poison, delays, requeuer bool
	steps                           [2]build
	atOnce                          int
	back                            bool // it goes the way back after each step, and forward again
}

// TestFromRetryAndPoisonQueue: an app with these two on its router adopts the library under traffic, and so do apps with all four
// components, and with each of them alone.
func TestFromRetryAndPoisonQueue(t *testing.T) {
	t.Parallel()
	connect, parts := [2]build{connectedOnly, connected}, [2]build{subscriberOnly, withMiddleware}
	for name, c := range map[string]watermills{
		"Retry and PoisonQueue, Connect": {retry: true, poison: true, steps: connect, atOnce: 300, back: true},
		"all four, parts":                {retry: true, poison: true, delays: true, requeuer: true, steps: parts, atOnce: 300},
		"Retry alone":                    {retry: true, steps: connect, atOnce: 50},
		"PoisonQueue alone":              {poison: true, steps: connect, atOnce: 50},
		"DelayOnError alone":             {delays: true, steps: connect, atOnce: 50},
		"Requeuer alone":                 {requeuer: true, steps: connect, atOnce: 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fromWatermill(t, c)
		})
	}
}

func fromWatermill(t *testing.T, c watermills) {
	t.Helper()
	d := newDeployment(t)
	d.schedule = backoff.Schedule{300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond}
	d.fails = func(identity string, call int) bool { // some more often than an old instance tries
		sum := crc32.ChecksumIEEE([]byte(identity))
		return sum%10 == 0 && call == 1 || sum%20 == 0 && call == 2 || sum%40 == 0 && call == 3
	}
	d.declare()
	poisoned := d.queue + ".poison"
	old := func(b build) *instance {
		i := d.instance(b)
		i.middlewares = c.middlewares(t, poisoned)
		return i.start()
	}
	both := func(start func(build) *instance, b build) []*instance { return []*instance{start(b), start(b)} }
	stop := func(instances []*instance) {
		for _, i := range instances {
			i.stop()
		}
	}
	before := both(old, stock)
	f := d.send(c.atOnce)
	work(t, 10, before...)
	if c.letters() {
		broker.Eventually(t, patience, func() bool { return testapp.Depth(t, poisoned) > 0 }, "the poison queue is in use")
	}
	stopRequeuer := func() {}
	if c.requeuer {
		stopRequeuer = d.startRequeuer(poisoned)
	}

	// Step 1: every instance gets the library's subscriber, and keeps Watermill's components.
	first := []*instance{old(c.steps[0])}
	work(t, 10, before[0], before[1], first[0])
	before[0].stop()
	first = append(first, old(c.steps[0]))
	before[1].stop()
	work(t, 10, first...)
	if c.back {
		before = both(old, stock)
		stop(first)
		work(t, 10, before...)
		first = both(old, c.steps[0])
		stop(before)
	}

	// Step 2: every instance gets the middleware, in their place.
	second := []*instance{d.start(c.steps[1])}
	work(t, 10, first[0], first[1], second[0])
	broker.Eventually(t, patience, func() bool { return first[0].returned.Load() > 0 && first[1].returned.Load() > 0 },
		"instances of step 1 process what comes back from a tier")
	first[0].stop()
	second = append(second, d.start(c.steps[1]))
	first[1].stop()
	work(t, 20, second...)
	if c.back {
		d.waitUntilReady(d.tiers()...)
		first = both(old, c.steps[0])
		stop(second)
		work(t, 10, first...)
		second = both(d.start, c.steps[1])
		stop(first)
	}

	// Step 3: nothing more comes to the poison queue. Its letters go back to the work queue.
	switch {
	case c.requeuer:
		d.waitUntilEmpty(poisoned)
		stopRequeuer()
		require.Zero(t, testapp.Depth(t, poisoned), "what the Requeuer had is not given back")
	case c.poison:
		d.redrive(f, poisoned)
	}

	// Step 4: the poison queue is empty, and is deleted.
	if c.letters() {
		assert.Contains(t, broker.Ctl(t, "delete_queue", poisoned), "0 ready")
	}
	if c.back {
		first = both(old, c.steps[0]) // with the poison queue
		stop(second)
		broker.Eventually(t, patience, func() bool { return testapp.Depth(t, poisoned) > 0 }, "the poison queue is in use")
		both(d.start, c.steps[1])
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

// letters reports whether messages come to the poison queue.
func (c watermills) letters() bool { return c.poison || c.requeuer }

// middlewares are those of a router without the library, in the usual order. Where a Requeuer has no PoisonQueue, the app itself
// publishes what has failed to its queue.
func (c watermills) middlewares(t testing.TB, queue string) (all []message.HandlerMiddleware) {
	t.Helper()
	if c.letters() {
		_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil)
		require.NoError(t, err)
		publishing := amqp.NewDurableQueueConfig(broker.URL(t))
		publishing.Publish.ConfirmDelivery = true
		publisher, err := amqp.NewPublisher(publishing, &testapp.Log{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, publisher.Close()) })
		setAside, err := watermillmw.PoisonQueue(publisher, queue)
		require.NoError(t, err)
		if !c.poison {
			setAside = setAsideByHand(publisher, queue)
		}
		all = append(all, setAside)
	}
	if c.retry {
		retry := watermillmw.Retry{MaxRetries: 1, InitialInterval: 10 * time.Millisecond, Multiplier: 1, MaxInterval: time.Second}
		all = append(all, retry.Middleware)
	}
	if c.delays {
		delays := watermillmw.DelayOnError{InitialInterval: 100 * time.Millisecond, MaxInterval: time.Second, Multiplier: 2}
		all = append(all, delays.Middleware)
	}
	return all
}

func setAsideByHand(publisher message.Publisher, queue string) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				return produced, nil
			}
			return nil, publisher.Publish(queue, msg)
		}
	}
}
