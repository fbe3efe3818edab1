package publisher_test

import (
	"errors"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestMessageKeepsItsContent(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	p := topology.open(t, nil)
	msg := newMessage("one")
	msg.Metadata.Set("key", "value")
	require.NoError(t, p.Publish(topology.queue, msg))

	delivery, ok, err := broker.Channel(t).Get(topology.queue, true)
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, "payload of one", string(delivery.Body))
	assert.Equal(t, "value", delivery.Headers["key"])
	assert.Equal(t, "one", delivery.Headers[publisher.UUIDHeader])
	assert.IsType(t, "", delivery.Headers[publisher.IDHeader], "watermill-amqp takes only strings")
	assert.Len(t, delivery.Headers, 3)
	assert.EqualValues(t, amqp091.Persistent, delivery.DeliveryMode)
	assert.NotContains(t, msg.Metadata, publisher.IDHeader)
}

// amqp091-go delivers returns and confirms separately. A publisher that confuses their order loses messages.
func TestEveryThirdMessageIsUnroutable(t *testing.T) {
	t.Parallel()
	const callers, each = 64, 30
	topology := declare(t, nil)
	p := topology.open(t, nil)
	delivered := make([]map[string]int, callers)
	var group sync.WaitGroup
	for caller := range callers {
		delivered[caller] = map[string]int{}
		group.Go(func() {
			for i := range each {
				uuid, key, want := fmt.Sprint(caller, "-", i), topology.queue, error(nil)
				if (caller+i)%3 == 0 {
					key, want = "nowhere", publish.ErrUnroutable
				}
				err := p.Publish(key, newMessage(uuid))
				if !assert.ErrorIs(t, err, want) {
					return
				}
				if err == nil {
					delivered[caller][uuid]++
				}
			}
		})
	}
	group.Wait()
	want := map[string]int{}
	for _, uuids := range delivered {
		for uuid := range uuids {
			want[uuid] = 1
		}
	}
	require.Equal(t, want, topology.content(t))
}

func TestUnroutable(t *testing.T) {
	t.Parallel()
	for exchange, cause := range map[string]string{"": "NO_ROUTE", "missing": "NOT_FOUND"} {
		t.Run(cause, func(t *testing.T) {
			t.Parallel()
			topology := declare(t, nil)
			p := topology.open(t, func(c *settings) { c.Exchange += exchange })
			err := p.Publish("nowhere", newMessage("lost"))
			failed := asPublishError(t, err, publish.ErrUnroutable)
			assert.Equal(t, topology.exchange+exchange, failed.Exchange)
			assert.Equal(t, "nowhere", failed.RoutingKey)
			assert.Equal(t, "lost", failed.MessageUUID)
			assert.Contains(t, err.Error(), cause)
			assert.Equal(t, exchange != "", publisher.NoExchange(err))
			p.config.Exchange = topology.exchange
			require.NoError(t, p.Publish(topology.queue, newMessage("next")))
		})
	}
}

func TestNacked(t *testing.T) {
	t.Parallel()
	topology := declare(t, amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(10), "x-overflow": "reject-publish"})
	p := topology.open(t, nil)
	messages := newMessages(30)
	confirmed := map[string]int{}
	for _, msg := range messages {
		err := p.Publish(topology.queue, msg)
		if err == nil {
			confirmed[msg.UUID]++
			continue
		}
		asPublishError(t, err, publish.ErrNacked)
	}
	require.Len(t, confirmed, 10)
	require.Equal(t, confirmed, topology.content(t))
}

// TestQueueThatWasFullTakesMessagesAgain: RabbitMQ 3.10 continues to refuse messages on a channel after the first refusal, also
// when the queue has room again.
func TestQueueThatWasFullTakesMessagesAgain(t *testing.T) {
	t.Parallel()
	topology := declare(t, amqp091.Table{"x-queue-type": "quorum", "x-overflow": "reject-publish"})
	testapp.PutPolicy(t, topology.queue, regexp.QuoteMeta(topology.queue), `{"max-length": 5}`)
	p := topology.open(t, nil)
	confirmed := map[string]int{}
	n := 0
	try := func() error {
		n++
		msg := message.NewMessage(fmt.Sprint("message-", n), nil)
		err := p.Publish(topology.queue, msg)
		if err == nil {
			confirmed[msg.UUID]++
		}
		return err
	}
	broker.Eventually(t, 60*time.Second, func() bool { return errors.Is(try(), publish.ErrNacked) }, "the queue is full")
	testapp.DeletePolicy(t, topology.queue)
	broker.Eventually(t, 60*time.Second, func() bool { return try() == nil }, "the queue has room again")
	require.Equal(t, confirmed, topology.content(t), "the queue contains no refused message")
}

func TestBatchesLargerThanMaxInFlight(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	p := topology.open(t, func(c *settings) { c.MaxInFlight = 8 })
	messages := newMessages(900)
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() { assert.NoError(t, p.Publish(topology.queue, messages[i*300:(i+1)*300]...)) })
	}
	group.Wait()
	require.Equal(t, once(messages), topology.content(t))
}
