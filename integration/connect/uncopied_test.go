package connect_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/amqp10"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestRequestsOfAMQP10AreRetriedAsOthers: a copy with such a reply-to would close the channel, one with a delivery time
// would be late on RabbitMQ 4.4, or stop the queue. Their dead letters still have both.
func TestRequestsOfAMQP10AreRetriedAsOthers(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	queue, deliveryTime, calls := s.Queue("orders"), time.Now().UnixMilli(), testapp.NewLedger()
	s.Handle(queue, 4, func(msg *message.Message) error { calls.Add(string(msg.Payload)); return errDown })
	s.Run()
	broker.SendRequests(t, queue, deliveryTime, testapp.IDs(8)...)
	testapp.Eventually(t, func() bool { return testapp.Depth(t, queue+".dead") == 8 }, "the dead letters")
	for id, count := range calls.Counts() {
		assert.Equal(t, 3, count, id)
	}
	assert.Zero(t, s.Log.Count("Opening another channel"), "no channel was closed")
	assert.Zero(t, s.Log.Count("holding the message"))
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: s.Name}, nil)
	require.NoError(t, err)
	defer store.Close()
	for letter, err := range store.Browse(t.Context(), queue+".dead", letters.Filter{}) {
		require.NoError(t, err)
		assert.Equal(t, amqp10.ReplyTo, letter.Properties["reply_to"])
		assert.Equal(t, deliveryTime, letter.Headers["x-opt-delivery-time"])
		assert.Empty(t, letter.Record.LeftOff)
	}
	for _, d := range testapp.Take(t, queue+".dead", 8) {
		assert.NotEqual(t, amqp10.ReplyTo, d.ReplyTo)
		assert.NotContains(t, d.Headers, "x-opt-delivery-time")
	}
}

// TestAloneMessagesThatTheBrokerRefusesForGoodStopNoOthers: with a lower max_message_size, such as that of RabbitMQ 4.0, the
// broker refuses every form of a copy, because of its body. Each refusal closes a channel: the shared one once for each
// message. As many such messages as the handler has places are kept beside them.
func TestAloneMessagesThatTheBrokerRefusesForGoodStopNoOthers(t *testing.T) {
	broker.Alone(t) // the limit is that of the node
	const limit, refused, good = 64 << 10, 4, 20
	usual := strings.TrimSpace(broker.Ctl(t, "eval", "{ok, Size} = application:get_env(rabbit, max_message_size), Size."))
	set := func(size string) {
		broker.Ctl(t, "eval", fmt.Sprintf("application:set_env(rabbit, max_message_size, %[1]s), "+
			"persistent_term:put(max_message_size, %[1]s).", size))
	}
	c, seen := testapp.Config(t), testapp.NewLedger()
	queue := "orders_" + c.Prefix
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil) // a nack puts back in front
	require.NoError(t, err)
	testapp.Send(t, "", queue, slices.Repeat([]amqp091.Publishing{{Body: make([]byte, 2*limit)}}, refused)...)
	set(strconv.Itoa(limit))
	t.Cleanup(func() { set(usual) })
	s := testapp.Connect(t, c) // a channel of RabbitMQ 3.10 keeps the limit that it began with
	s.Handle(queue, refused, func(msg *message.Message) error {
		if len(msg.Payload) > limit {
			return errDown
		}
		return seen.Handle(msg)
	})
	s.Run()
	held := func() int { return s.Log.Count("holding the message") }
	testapp.Eventually(t, func() bool { return held() == refused }, "each message is held")
	s.Publish(queue, testapp.IDs(good)...)
	seen.Wait(t, good, soon)
	health := s.Health().Subscriptions[0]
	assert.Empty(t, health.Paused)
	assert.Equal(t, refused, health.Holding)
	assert.Equal(t, refused, held(), "the next try is a minute later")
	assert.LessOrEqual(t, s.Log.Count("Opening another channel"), refused)
	assert.Empty(t, seen.Twice())
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
	s.Handle(s.Queue("orders"), 1, good.Handle)
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
