package publisher_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

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

// openStuck declares a healthy queue and one that never confirms, for a publisher to the default exchange.
func openStuck(t *testing.T, queueType string, change func(*settings)) (p half, healthy, stuck topology) {
	t.Helper()
	healthy, stuck = declare(t, nil), declare(t, amqp091.Table{"x-queue-type": queueType})
	p = healthy.open(t, func(c *settings) { c.Exchange = ""; change(c) })
	suspend(t, stuck.queue)
	return p, healthy, stuck
}

// Callers that publish to a queue that never confirms time out again and again. This must not delay callers of another queue.
func TestQueueThatNeverConfirms(t *testing.T) {
	t.Parallel()
	const maxInFlight, stuckCallers, rounds, timeout = 16, 4, 10, 500 * time.Millisecond
	p, healthy, stuck := openStuck(t, "classic", func(c *settings) {
		c.MaxInFlight, c.ConfirmTimeout = maxInFlight, timeout
	})
	var group sync.WaitGroup
	for caller := range stuckCallers {
		group.Go(func() {
			for round := range rounds {
				err := p.Publish(stuck.queue, newMessage(fmt.Sprint("stuck ", caller, round)))
				assert.ErrorIs(t, err, publish.ErrNotConfirmed)
			}
		})
	}
	var confirmed []string
	for begin := time.Now(); time.Since(begin) < rounds*timeout; time.Sleep(5 * time.Millisecond) {
		uuid := fmt.Sprint("healthy ", len(confirmed))
		require.NoError(t, p.Publish(healthy.queue, newMessage(uuid)))
		confirmed = append(confirmed, uuid)
	}
	group.Wait()
	content := healthy.content(t)
	for _, uuid := range confirmed {
		assert.NotZero(t, content[uuid], uuid)
	}
	assert.Len(t, content, len(confirmed))
}

// A channel waits without end when the process of the quorum queue does not answer to its first message. It confirms no message of
// any queue, and does not close. The publisher must use another channel.
func TestChannelThatDoesNotClose(t *testing.T) {
	t.Parallel()
	const maxInFlight, timeout = 16, 500 * time.Millisecond
	p, healthy, stuck := openStuck(t, "quorum", func(c *settings) {
		c.MaxInFlight, c.ConfirmTimeout = maxInFlight, timeout
	})
	err := p.Publish(stuck.queue, newMessages(maxInFlight/2)...)
	require.ErrorIs(t, err, publish.ErrNotConfirmed)
	require.ErrorIs(t, p.Publish(stuck.queue, newMessage("one more")), publish.ErrNotConfirmed)

	messages := newMessages(10 * maxInFlight)
	var group sync.WaitGroup
	for caller := range maxInFlight { // as many callers as slots: the publisher has lost no slot
		group.Go(func() { assert.NoError(t, p.Publish(healthy.queue, messages[10*caller:10*(caller+1)]...)) })
	}
	group.Wait()
	require.Equal(t, once(messages), healthy.content(t))
}
