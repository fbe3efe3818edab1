package conformance

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
)

// subscriber: code that adds its handlers by itself subscribes one subscriber to several topics, and the middleware is
// the router's.
func subscriber(t *testing.T, f *fixture) {
	const messages = 10
	config, topics := f.app(200*time.Millisecond), []string{f.topic(0), f.topic(1)}
	a := f.connect(config, topics, nil)
	a.router.AddMiddleware(a.Middleware)
	shared, err := a.Subscriber("archive")
	require.NoError(t, err)
	for i, topic := range topics {
		a.router.AddConsumerHandler(handlerName(i), topic, shared, func(msg *message.Message) error {
			called := message.HandlerNameFromCtx(msg.Context())
			assert.Equal(t, topic+" "+handlerName(i), msg.UUID[5:]+" "+called, "the handler of its topic")
			return f.ledger.failing(1)(msg)
		})
	}
	a.run()
	for _, topic := range topics {
		for _, id := range ids(messages) {
			a.publishTo(topic, id+topic)
		}
	}
	f.comeBack(2*messages, 1, config.Policy.Schedule)
}

// concurrency: a handler has 16 retries in flight by default. There are enough messages for each of 16 partitions.
func concurrency(t *testing.T, f *fixture) {
	const inFlight, messages = 16, 320
	config, topics := f.app(200*time.Millisecond), f.topics(1)
	if f.Name == "kafka" { // one message of each partition is in flight
		kafkaOn(t, strings.Split(f.url, ",")).make(topics[0], inFlight)
	}
	var called, most atomic.Int32
	together := make(chan struct{})
	a := f.connect(config, topics, nil).handle("billing", topics[0], func(msg *message.Message) error {
		if err := f.ledger.failing(1)(msg); err != nil {
			return err
		}
		now := called.Add(1)
		defer called.Add(-1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		if now == inFlight {
			close(together)
		}
		select {
		case <-together:
		case <-time.After(wait.Patience):
			t.Error("the handler has fewer messages in flight")
		}
		return nil
	}).run()
	a.publishTo(topics[0], ids(messages)...)
	f.comeBack(messages, 1, config.Policy.Schedule)
	assert.EqualValues(t, inFlight, most.Load(), "messages in flight")
}
