package publisher_test

import (
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
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

func TestConfirmedMessagesAreInTheQueue(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"classic", "quorum"} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			topology := declare(t, amqp091.Table{"x-queue-type": queueType})
			p := topology.open(t, nil)
			messages := newMessages(500)
			var group sync.WaitGroup
			for _, msg := range messages {
				group.Go(func() { assert.NoError(t, p.Publish(topology.queue, msg)) })
			}
			group.Wait()
			require.Equal(t, once(messages), topology.content(t))
		})
	}
}

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

// TestAMessageWithoutADeliveryModeIsPersistent: a restart of the broker keeps it.
func TestAMessageWithoutADeliveryModeIsPersistent(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	p := topology.open(t, func(s *settings) {
		s.Marshal = func(msg *message.Message) (amqp091.Publishing, error) {
			return amqp091.Publishing{Body: msg.Payload}, nil
		}
	})
	require.NoError(t, p.Publish(topology.queue, newMessage("one")))
	delivery, ok, err := broker.Channel(t).Get(topology.queue, true)
	require.NoError(t, err)
	require.True(t, ok)
	assert.EqualValues(t, amqp091.Persistent, delivery.DeliveryMode)
}

// amqp091-go delivers returns and confirms separately. A publisher that confuses their order loses messages.
func TestEveryThirdMessageIsUnroutable(t *testing.T) {
	t.Parallel()
	const callers, each = 64, 100
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

func TestRedeclareRestoresTheTopology(t *testing.T) {
	t.Parallel()
	remove := map[string]func(*amqp091.Channel, topology) error{
		"missing queue": func(channel *amqp091.Channel, o topology) error {
			_, err := channel.QueueDelete(o.queue, false, false, false)
			return err
		},
		"missing binding": func(channel *amqp091.Channel, o topology) error {
			return channel.QueueUnbind(o.queue, o.queue, o.exchange, nil)
		},
		"missing exchange": func(channel *amqp091.Channel, o topology) error {
			return channel.ExchangeDelete(o.exchange, false, false)
		},
	}
	for name, remove := range remove {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topology := declare(t, nil)
			var underWay, calls atomic.Int32
			p := topology.open(t, func(c *settings) {
				c.Redeclare = func(channel *amqp091.Channel, exchange, routingKey string) error {
					assert.EqualValues(t, 1, underWay.Add(1), "calls overlap")
					defer underWay.Add(-1)
					calls.Add(1)
					assert.Equal(t, topology.exchange, exchange)
					assert.Equal(t, topology.queue, routingKey)
					return topology.declare(channel, nil)
				}
			})
			require.NoError(t, p.Publish(topology.queue, newMessage("before")))
			require.Zero(t, calls.Load())
			topology.content(t)
			require.NoError(t, remove(broker.Channel(t), topology))

			messages := newMessages(50)
			var group sync.WaitGroup
			for _, msg := range messages {
				group.Go(func() { assert.NoError(t, p.Publish(topology.queue, msg)) })
			}
			group.Wait()
			require.NotZero(t, calls.Load())
			require.Equal(t, once(messages), topology.content(t))
		})
	}
}

func TestUnroutable(t *testing.T) {
	t.Parallel()
	broken := errors.New("cannot redeclare")
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	tests := map[string]struct {
		redeclare func(*amqp091.Channel, string, string) error
		exchange  string
		cause     string
		is        error
	}{
		"no redeclare":                             {cause: "NO_ROUTE"},
		"missing exchange":                         {exchange: "missing", cause: "NOT_FOUND"},
		"redeclare fails":                          {redeclare: func(*amqp091.Channel, string, string) error { return broken }, cause: "NO_ROUTE", is: broken},
		"redeclare does nothing":                   {redeclare: func(*amqp091.Channel, string, string) error { return nil }, cause: "NO_ROUTE"},
		"redeclare panics":                         {redeclare: func(*amqp091.Channel, string, string) error { panic("oops") }, cause: "oops"},
		"redeclare hangs":                          {redeclare: func(*amqp091.Channel, string, string) error { <-forever; return nil }, cause: "did not return in time"},
		"redeclare breaks":                         {redeclare: breakChannel, cause: "PRECONDITION_FAILED"},
		"missing exchange, redeclare does nothing": {exchange: "missing", redeclare: func(*amqp091.Channel, string, string) error { return nil }, cause: "NOT_FOUND"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topology := declare(t, nil)
			p := topology.open(t, func(c *settings) {
				c.Exchange += test.exchange
				c.Redeclare = test.redeclare
			})
			begin := time.Now()
			err := p.Publish("nowhere", newMessage("lost"))
			require.Less(t, time.Since(begin), 25*time.Second, "the default of ConfirmTimeout is 30 s")
			publishError := asPublishError(t, err, publish.ErrUnroutable)
			assert.Equal(t, topology.exchange+test.exchange, publishError.Exchange)
			assert.Equal(t, "nowhere", publishError.RoutingKey)
			assert.Equal(t, "lost", publishError.MessageUUID)
			assert.Contains(t, err.Error(), test.cause)
			if test.is != nil {
				assert.ErrorIs(t, err, test.is)
			}
			if test.exchange == "" {
				require.NoError(t, p.Publish(topology.queue, newMessage("next")))
			}
		})
	}
}

func breakChannel(channel *amqp091.Channel, _, _ string) error {
	return channel.ExchangeDeclare("amq.direct", "fanout", true, false, false, false, nil)
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

func TestBatchErrorNamesTheFailedMessage(t *testing.T) {
	t.Parallel()
	topology := declare(t, amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(2), "x-overflow": "reject-publish"})
	p := topology.open(t, nil)
	err := p.Publish(topology.queue, newMessages(3)...)
	assert.Equal(t, "message-2", asPublishError(t, err, publish.ErrNacked).MessageUUID)
	require.Equal(t, once(newMessages(2)), topology.content(t))

	messages := newMessages(3)
	messages[1].Metadata.Set(string(make([]byte, 256)), "a key that is too long")
	err = p.Publish(topology.queue, messages...)
	assert.Equal(t, "message-1", asPublishError(t, err, publish.ErrRefused).MessageUUID)
	require.Empty(t, topology.content(t), "a refused message fails its whole call")
}
