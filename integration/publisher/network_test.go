package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestLostConnection(t *testing.T) {
	t.Parallel()
	const callers = 32
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) { c.Wire.URI = uri })
	require.NoError(t, p.Publish(topology.queue, newMessage("before")))

	proxy.Disturb(broker.Line{}, broker.Line{Lost: true}) // all messages must be in flight
	results := make(chan error, callers)
	for i := range callers {
		go func() { results <- p.Publish(topology.queue, newMessage(fmt.Sprint("in flight ", i))) }()
	}
	client := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		queue, err := client.QueueDeclarePassive(topology.queue, true, false, false, false, nil)
		return err == nil && queue.Messages == callers+1
	}, "all messages are in the queue")
	proxy.Stop()
	for range callers {
		asPublishError(t, broker.Receive(t, results, "Publish returns"), publish.ErrNotConnected)
	}
	broker.Eventually(t, soon, func() bool {
		err := p.Publish(topology.queue, newMessage("away"))
		asPublishError(t, err, publish.ErrNotConnected)
		var dial *net.OpError
		return errors.As(err, &dial) && dial.Op == "dial"
	}, "the error contains why it cannot reconnect")

	proxy.Disturb(broker.Line{}, broker.Line{})
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return p.Publish(topology.queue, newMessage("after")) == nil }, "it reconnects")
	content := topology.content(t)
	assert.Equal(t, 1, content["after"])
	assert.Zero(t, content["away"])
	assert.Len(t, content, callers+2)
	health := p.Health()
	assert.Equal(t, 1, health.Reconnects)
	require.NotEmpty(t, health.LastError, "it is kept")
	assert.False(t, health.Since.Before(health.LastErrorAt))
}

// suspend stops the process of a queue inside the broker. Like a queue without a majority, it takes messages and confirms none.
func suspend(t *testing.T, queue string) {
	t.Helper()
	eval := func(action string) {
		t.Helper()
		require.Contains(t, broker.Ctl(t, "eval", fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
			sys:%s(amqqueue:get_pid(Q)).`, queue, action)), "ok")
	}
	t.Cleanup(func() { eval("resume") })
	eval("suspend")
}

// A channel waits without end when the process of the quorum queue does not answer to its first message: it confirms no
// message of any queue, and does not close. A classic queue confirms none of its own messages. The publisher must use
// another channel.
func TestQueueThatNeverConfirms(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"classic", "quorum"} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			const maxInFlight = 16
			healthy, stuck := declare(t, nil), declare(t, amqp091.Table{"x-queue-type": queueType})
			p := healthy.open(t, func(c *settings) {
				c.Exchange, c.MaxInFlight = "", maxInFlight
			})
			suspend(t, stuck.queue)
			for _, count := range []int{maxInFlight / 2, 1} { // more than half
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				given := newMessages(count)
				for _, msg := range given {
					msg.SetContext(ctx)
				}
				require.ErrorIs(t, p.Publish(stuck.queue, given...), publish.ErrNotConfirmed)
				cancel()
			}

			messages := newMessages(10 * maxInFlight)
			var group sync.WaitGroup
			for caller := range maxInFlight { // as many callers as slots: the publisher has lost no slot
				group.Go(func() { assert.NoError(t, p.Publish(healthy.queue, messages[10*caller:10*(caller+1)]...)) })
			}
			group.Wait()
			content := healthy.content(t) // what was in flight on the channel that is given up may be there twice
			for _, msg := range messages {
				assert.NotZero(t, content[msg.UUID], msg.UUID)
			}
			assert.Len(t, content, len(messages))
		})
	}
}
