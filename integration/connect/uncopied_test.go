package connect_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/amqp10"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// A seeing marshaler shows the handler what the delivery had.
type seeing struct{ amqp.DefaultMarshaler }

func (m seeing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	replyTo, deliveryTime := d.ReplyTo, d.Headers["x-opt-delivery-time"]
	texts := amqp091.Table{}
	for key, value := range d.Headers {
		if text, ok := value.(string); ok {
			texts[key] = text
		}
	}
	d.Headers = texts
	msg, err := m.DefaultMarshaler.Unmarshal(d)
	if err == nil && replyTo != "" {
		msg.Metadata["seen"] = fmt.Sprintf("%s, %T %v", replyTo, deliveryTime, deliveryTime)
	}
	return msg, err
}

func (m seeing) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	own := msg.Copy()
	delete(own.Metadata, "seen")
	return m.DefaultMarshaler.Marshal(own)
}

// TestRequestsOfAMQP10AreRetriedAsOthers: a copy with such a reply-to would close the channel, one with a delivery time
// would be late on RabbitMQ 4.4, or stop the queue. The handler sees both at every try, and after a redrive.
func TestRequestsOfAMQP10AreRetriedAsOthers(t *testing.T) {
	t.Parallel()
	deliveryTime := time.Now().UnixMilli()
	s := testapp.New(t, func(b *config.Config) { b.AMQP.Marshaler = seeing{} })
	var mu sync.Mutex
	seen := map[string]int{}
	good := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		if request := msg.Metadata["seen"]; request != "" {
			mu.Lock()
			seen[request]++
			mu.Unlock()
			return errDown
		}
		good.Add(msg.UUID)
		return nil
	})
	s.Run()
	orders := s.Queue("orders")
	requests := make([]string, 8)
	for i := range requests {
		requests[i] = fmt.Sprint("request ", i)
	}
	broker.SendRequests(t, orders, deliveryTime, requests...)
	s.Publish(s.Queue("orders"), testapp.IDs(50)...)
	good.Wait(t, 50, soon)
	want := fmt.Sprintf("amq.rabbitmq.reply-to, int64 %d", deliveryTime)
	tries := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return maps.Equal(seen, map[string]int{want: n * len(requests)})
		}
	}
	testapp.Eventually(t, tries(3), "every request is handled three times, with all it had: %v", seen)
	testapp.Eventually(t, func() bool { return testapp.Depth(t, orders+".dead") == len(requests) }, "the dead letters")
	assert.Zero(t, s.Log.Count("Opening another channel"), "no channel was closed")
	assert.Zero(t, s.Log.Count("holding the message"))

	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: s.Name}, nil)
	require.NoError(t, err)
	defer store.Close()
	for letter, err := range store.Browse(t.Context(), orders+".dead", letters.Filter{}) {
		require.NoError(t, err)
		assert.Equal(t, "amq.rabbitmq.reply-to", letter.Properties["reply_to"])
		assert.Equal(t, deliveryTime, letter.Headers["x-opt-delivery-time"])
		assert.Empty(t, letter.Record.LeftOff)
	}
	var exported strings.Builder
	_, err = store.Export(t.Context(), orders+".dead", letters.Filter{}, &exported)
	require.NoError(t, err)
	_, err = store.Discard(t.Context(), orders+".dead", letters.Discard{})
	require.NoError(t, err)
	_, err = store.Import(t.Context(), strings.NewReader(exported.String()), letters.Redrive{})
	require.NoError(t, err)
	_, err = store.Redrive(t.Context(), orders+".dead", letters.Redrive{})
	require.NoError(t, err)
	testapp.Eventually(t, tries(6), "every request is handled three times again: %v", seen)
	testapp.Eventually(t, func() bool { return testapp.Depth(t, orders+".dead") == len(requests) }, "the dead letters")
	for _, d := range testapp.Take(t, orders+".dead", len(requests)) {
		assert.NotEqual(t, "amq.rabbitmq.reply-to", d.ReplyTo)
		assert.NotContains(t, d.Headers, "x-opt-delivery-time")
	}
}

// TestAloneMessagesThatTheBrokerRefusesForGoodStopNoOthers: with a lower max_message_size, such as that of RabbitMQ 4.0, the
// broker refuses every form of a copy, because of its body. Each refusal closes a channel: the shared one once for each
// message. As many such messages as the handler has places are kept beside them.
func TestAloneMessagesThatTheBrokerRefusesForGoodStopNoOthers(t *testing.T) {
	broker.Alone(t) // the limit is that of the node
	const limit = 64 << 10
	usual, err := strconv.Atoi(strings.TrimSpace(broker.Ctl(t, "eval",
		"{ok, Size} = application:get_env(rabbit, max_message_size), Size.")))
	require.NoError(t, err)
	set := func(size int) {
		broker.Ctl(t, "eval",
			fmt.Sprintf("application:set_env(rabbit, max_message_size, %[1]d), persistent_term:put(max_message_size, %[1]d).",
				size))
	}
	type row struct {
		config                     config.Config
		concurrency, refused, good int
	}
	rows := []row{{testapp.Config(t), 4, 4, 20}, {testapp.Config(t), 1, 2, 5}}
	for _, row := range rows {
		large := make([]amqp091.Publishing, row.refused)
		for i := range large {
			large[i] = amqp091.Publishing{Body: make([]byte, 2*limit)}
		}
		queue := "orders_" + row.config.Prefix
		_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil) // a nack puts back in front
		require.NoError(t, err)
		testapp.Send(t, "", queue, large...)
	}
	set(limit)
	t.Cleanup(func() { set(usual) })
	for _, row := range rows {
		t.Run(fmt.Sprint(row.refused, " of ", row.concurrency), func(t *testing.T) {
			s := testapp.Connect(t, row.config)
			good := testapp.NewLedger()
			s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
				if len(msg.Payload) > limit {
					return errDown
				}
				good.Add(msg.UUID)
				return nil
			}, retry.Options{Concurrency: row.concurrency})
			s.Run()
			held := func() bool { return s.Log.Count("holding the message") == row.refused }
			testapp.Eventually(t, held, "each message is held")
			s.Publish(s.Queue("orders"), testapp.IDs(row.good)...)
			good.Wait(t, row.good, soon)
			health := s.Health().Subscriptions[0]
			assert.Empty(t, health.Paused)
			assert.Equal(t, row.refused, health.Holding)
			assert.Equal(t, row.refused, s.Log.Count("holding the message"), "the next try is a minute later")
			assert.LessOrEqual(t, s.Log.Count("Opening another channel"), row.refused)
			assert.Empty(t, good.Twice())
		})
	}
}

// TestPropertiesThatTheBrokerCannotDeliver: RabbitMQ 4 closes the consuming connection at each delivery of an AMQP 1.0
// message with a property of type uuid, until the delivery limit of the work queue.
func TestPropertiesThatTheBrokerCannotDeliver(t *testing.T) {
	t.Parallel()
	if !amqp10.Spoken(broker.Connect(t)) {
		t.Log("this broker does not speak AMQP 1.0 itself: no client can publish such a message")
		_, _, err := amqp10.Dial(t.Context(), broker.URL(t), "orders")
		require.Error(t, err)
		return
	}
	const deliveries = 3
	s := testapp.New(t, func(c *config.Config) {
		c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(deliveries)}
	})
	good := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"),
		good.Handle, retry.Options{Concurrency: 1})
	s.Run()
	m := amqp10.Message("order", "")
	m.ApplicationProperties = map[string]any{"order_id": goamqp.UUID{1}}
	broker.SendAMQP10(t, s.Queue("orders"), m)
	testapp.Eventually(t, func() bool { return s.Log.Count("541") > 0 }, "the connection is closed")
	s.Publish(s.Queue("orders"), testapp.IDs(50)...)
	good.Wait(t, 50, soon)
	assert.LessOrEqual(t, s.Health().Links[0].Reconnects, deliveries+1, "one for each delivery, and each after at most a second")
	assert.Equal(t, 1, testapp.Depth(t, s.Queue("orders")+".dead"))
}
