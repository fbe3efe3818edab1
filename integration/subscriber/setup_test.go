package subscriber_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const soon = 60 * time.Second // much longer than any of it takes

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quorum is a queue that counts deliveries and never reaches its limit.
var quorum = amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}

var classic = amqp091.Table{"x-queue-type": "classic"}

// A queue is declared by the subscriber, and deleted when the test ends.
type queue struct {
	name      string
	arguments amqp091.Table
	channel   *amqp091.Channel // for the test's own publishes
}

func newQueue(t testing.TB, arguments amqp091.Table) *queue {
	t.Helper()
	q := &queue{name: broker.Name(t, "subscriber"), arguments: arguments, channel: broker.Channel(t)}
	require.NoError(t, q.channel.Confirm(false))
	require.NoError(t, q.declare(&subscriber.Declaration{Reopening: wire.Reopening{On: q}}, q.name))
	cleaner := broker.Channel(t)
	t.Cleanup(func() { _, _ = cleaner.QueueDelete(q.name, false, false, false) })
	return q
}

// OpenChannel implements wire.Opener.
func (q *queue) OpenChannel() (*amqp091.Channel, error) { return q.channel, nil }

func (q *queue) declare(d *subscriber.Declaration, topic string) error {
	channel, err := d.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(topic, true, false, false, false, q.arguments)
	}
	return err
}

// publish publishes messages to the queue, in their order, and waits for their confirms.
func (q *queue) publish(t testing.TB, uuids ...string) {
	t.Helper()
	var confirms []*amqp091.DeferredConfirmation
	for _, uuid := range uuids {
		confirm, err := q.channel.PublishWithDeferredConfirm("", q.name, true, false, amqp091.Publishing{
			Headers: amqp091.Table{uuidHeader: uuid}, Body: []byte(uuid), DeliveryMode: amqp091.Persistent,
		})
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		acked, err := confirm.WaitContext(ctx)
		cancel()
		require.NoError(t, err)
		require.True(t, acked)
	}
}

// content is the rest of the queue, by UUID. It empties the queue.
func (q *queue) content(t testing.TB) map[string]amqp091.Delivery {
	t.Helper()
	channel := broker.Channel(t)
	content := map[string]amqp091.Delivery{}
	for {
		delivery, ok, err := channel.Get(q.name, true)
		require.NoError(t, err)
		if !ok {
			return content
		}
		uuid := delivery.Headers[uuidHeader].(string)
		require.NotContains(t, content, uuid, "twice in the queue")
		content[uuid] = delivery
	}
}

// ready is how many messages wait in the queue, without those that a consumer has.
func (q *queue) ready(t testing.TB) int {
	t.Helper()
	state, err := q.channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
	require.NoError(t, err)
	return state.Messages
}

func names(prefix string, count int) (uuids []string) {
	for i := range count {
		uuids = append(uuids, fmt.Sprintf("%s-%04d", prefix, i))
	}
	return uuids
}

func open(t testing.TB, uri string) *subscriber.Connection {
	t.Helper()
	connection, err := subscriber.Open(wire.Config{URI: uri, ReconnectInitial: 20 * time.Millisecond, ReconnectMax: time.Second}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	return connection
}

// subscribe consumes the queue over a connection of its own until the test ends.
func (q *queue) subscribe(t testing.TB, uri string, c config) (*subscriber.Connection, *subscriber.Subscriber, <-chan *message.Message) {
	t.Helper()
	connection := open(t, uri)
	if c.Declare == nil {
		c.Declare = q.declare
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 5 * time.Second
	}
	s := newSubscriber(connection, c)
	messages, err := s.Subscribe(t.Context(), q.name)
	require.NoError(t, err)
	return connection, s, messages
}

// A ledger counts messages by their identity.
type ledger struct {
	mu    sync.Mutex
	count map[string]int
	order []string
}

func newLedger() *ledger { return &ledger{count: map[string]int{}} }

func (l *ledger) add(uuid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[uuid]++
	l.order = append(l.order, uuid)
}

// distinct is how many different messages there are.
func (l *ledger) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.count)
}

func (l *ledger) inOrder() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.order)
}

// handle runs a handler for each message in a goroutine of its own, as Watermill's router does.
func handle(messages <-chan *message.Message, handler func(*message.Message)) {
	go func() {
		for msg := range messages {
			go handler(msg)
		}
	}()
}

// receive waits for a message.
func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	msg := broker.Receive(t, messages, "a message")
	require.NotNil(t, msg, "the channel is closed")
	return msg
}

// uuidHeader is the header with the UUID of a test's message.
const uuidHeader = "_watermill_message_uuid"

// A config is that of a subscriber and of its handler. Each function may be nil.
type config struct {
	QueueOf   func(topic string) string
	Declare   func(declaration *subscriber.Declaration, topic string) error
	Unmarshal func(delivery amqp091.Delivery) (*message.Message, error)
	Nacked    func(msg *message.Message) bool

	Concurrency, Prefetch     int
	OrderKey                  func(msg *message.Message) string
	Gate                      *gate.Gate
	Consumer                  channel.Options
	CloseTimeout, LongestNack time.Duration
}

func newSubscriber(connection *subscriber.Connection, c config) *subscriber.Subscriber {
	return subscriber.NewSubscriber(connection, handler{c}, subscriber.Config{
		Concurrency: c.Concurrency, Prefetch: c.Prefetch, OrderKey: c.OrderKey, Gate: c.Gate, Consumer: c.Consumer,
		CloseTimeout: c.CloseTimeout, LongestNack: c.LongestNack,
	}, watermill.NopLogger{})
}

// A handler is that of a config.
type handler struct{ config config }

func (h handler) QueueOf(topic string) (string, error) {
	if h.config.QueueOf == nil {
		return topic, nil
	}
	return h.config.QueueOf(topic), nil
}

func (h handler) Bind(*subscriber.Declaration, string) error { return nil }

func (h handler) Declare(d *subscriber.Declaration, topic string) error {
	if h.config.Declare == nil {
		return nil
	}
	return h.config.Declare(d, topic)
}

func (h handler) MayBeQuorum(string) bool { return true }

func (h handler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if h.config.Unmarshal != nil {
		return h.config.Unmarshal(d)
	}
	uuid, _ := d.Headers[uuidHeader].(string)
	return message.NewMessage(uuid, d.Body), nil
}

func (h handler) Nacked(msg *message.Message, _ amqp091.Delivery) bool {
	return h.config.Nacked != nil && h.config.Nacked(msg)
}
