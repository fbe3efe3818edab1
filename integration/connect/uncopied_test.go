package connect_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
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
	good, other := testapp.NewLedger(), testapp.NewLedger()
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
	s.AddConsumerHandler(s.Router, "other", s.Queue("others"), other.Handle, retry.Options{Concurrency: 64})
	s.Run()
	orders := s.Queue("orders")
	requests := make([]string, 8)
	for i := range requests {
		requests[i] = fmt.Sprint("request ", i)
	}
	broker.SendRequests(t, orders, deliveryTime, requests...)
	const unrelated, each = 16, 100
	var publishing sync.WaitGroup
	for g := range unrelated {
		publishing.Go(func() {
			for i := range each {
				assert.NoError(t, s.Publisher().Publish(s.Queue("others"), message.NewMessage(fmt.Sprint(g, "-", i), nil)))
			}
		})
	}
	s.Publish(s.Queue("orders"), testapp.IDs(50)...)
	good.Wait(t, 50, soon)
	publishing.Wait()
	other.Wait(t, unrelated*each, soon)
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
	assert.Empty(t, other.Twice())
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
	_, err = store.Import(t.Context(), strings.NewReader(exported.String()), deadletter.Import{})
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

// A weighing marshaler adds a header that AMQP cannot have.
type weighing struct{ amqp.DefaultMarshaler }

func (m weighing) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	if msg.Metadata["weigh"] != "" {
		p.Headers["weight"], p.ContentType = math.NaN(), "text/plain"
	}
	return p, err
}

// TestADeadLetterThatIsRefusedForGoodHasALastForm: body, UUID and record, and what is left off. A redrive sends it.
func TestADeadLetterThatIsRefusedForGoodHasALastForm(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, func(b *config.Config) { b.AMQP.Marshaler = weighing{} })
	var mu sync.Mutex
	handled := []string{}
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled = append(handled, fmt.Sprint(msg.UUID, " ", string(msg.Payload), " ", msg.Metadata["weigh"]))
		if msg.Metadata["weigh"] != "" {
			return errDown
		}
		return nil
	})
	s.Run()
	orders := s.Queue("orders")
	testapp.Send(t, "", orders, amqp091.Publishing{
		Body: []byte("order 1"), CorrelationId: "c", Headers: amqp091.Table{"_watermill_message_uuid": "1", "weigh": "it"},
	})
	testapp.Eventually(t, func() bool { return testapp.Depth(t, orders+".dead") == 1 }, "the dead letter")
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: s.Name}, nil)
	require.NoError(t, err)
	defer store.Close()
	const off = `properties content-type, correlation-id; headers weigh, weight: publish to exchange`
	for letter, err := range store.Browse(t.Context(), orders+".dead", letters.Filter{}) {
		require.NoError(t, err)
		assert.Equal(t, []any{"1", "order 1", 1}, []any{letter.ID, string(letter.Payload), letter.Record.Failures})
		assert.Equal(t, errDown.Error(), letter.Record.Reason)
		assert.Equal(t, retry.DeadReasonRefused, letter.Record.DeadReason)
		assert.Contains(t, letter.Record.LeftOff, off)
		assert.Contains(t, letter.Record.LeftOff, `header "weight" is NaN, must be a finite number`)
	}
	require.Len(t, s.Log.Lines("Message dead-lettered"), 1)
	assert.Contains(t, s.Log.Lines("Message dead-lettered")[0], off)
	assert.Zero(t, s.Log.Count("holding the message"))
	_, err = store.Redrive(t.Context(), orders+".dead", letters.Redrive{})
	require.NoError(t, err)
	testapp.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(handled, []string{"1 order 1 it", "1 order 1 "})
	}, "the redriven message: %q", handled)
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
	for name, row := range map[string]struct{ concurrency, refused, good int }{
		"all places": {16, 16, 50}, "one place": {1, 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			b := testapp.Config(t)
			queue := "orders_" + b.Prefix
			large := make([]amqp091.Publishing, row.refused)
			for i := range large {
				large[i] = amqp091.Publishing{Body: make([]byte, 2*limit)}
			}
			_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil) // a nack puts back in front
			require.NoError(t, err)
			testapp.Send(t, "", queue, large...)
			set(limit)
			t.Cleanup(func() { set(usual) })
			s := testapp.Connect(t, b)
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
// message with a property of type uuid, until the delivery limit of the work queue. The figure is in
// docs/guarantees.md.
func TestPropertiesThatTheBrokerCannotDeliver(t *testing.T) {
	t.Parallel()
	if !amqp10.Spoken(broker.Connect(t)) {
		t.Log("this broker does not speak AMQP 1.0 itself: no client can publish such a message")
		_, _, err := amqp10.Dial(t.Context(), broker.URL(t), "orders")
		require.Error(t, err)
		return
	}
	s := testapp.New(t)
	good := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"),
		good.Handle, retry.Options{Concurrency: 1})
	s.Run()
	began := time.Now()
	m := amqp10.Message("order", "")
	m.ApplicationProperties = map[string]any{"order_id": goamqp.UUID{1}}
	broker.SendAMQP10(t, s.Queue("orders"), m)
	testapp.Eventually(t, func() bool { return s.Log.Count("541") > 0 }, "the connection is closed")
	s.Publish(s.Queue("orders"), testapp.IDs(50)...)
	good.Wait(t, 50, soon)
	assert.Less(t, time.Since(began), 45*time.Second, "20 pauses of up to a second each")
	assert.Equal(t, 1, testapp.Depth(t, s.Queue("orders")+".dead"))
}
