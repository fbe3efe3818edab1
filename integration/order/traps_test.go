// Package order_test tests, on a real broker, the order of messages by key through retries.
package order_test

import (
	"fmt"
	"maps"
	"net"
	"strconv"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// The tests of the files traps_*.go use no code of the library. They show what a quorum queue with a single active
// consumer does, and what would break the order of an ordered handler. Where a later RabbitMQ behaves otherwise, a test
// fails and names the rule of the handler to check again. The scripts of integration/simulation/proof show what a canceled
// consumer keeps, in which order a queue takes messages back, and that an exclusive consumer is no lock,
// and that waiting consumers are not counted.

// partition declares such a queue with the messages 1 to n. The arguments are added to its own.
func partition(t *testing.T, n int, arguments amqp091.Table) (queue string) {
	t.Helper()
	queue = broker.Name(t, "trap")
	broker.Clean(t, queue)
	all := amqp091.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int64(1_000_000),
	}
	maps.Copy(all, arguments)
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, all)
	require.NoError(t, err)
	var messages []amqp091.Publishing
	for _, i := range upTo(n) {
		messages = append(messages, amqp091.Publishing{Body: []byte(strconv.Itoa(i))})
	}
	testapp.Send(t, "", queue, messages...)
	return queue
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

// A holder consumes a queue, on a connection of its own, and keeps unacknowledged what it gets.
type holder struct {
	t          *testing.T
	network    net.Conn
	channel    *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	got        []amqp091.Delivery
}

const holderTag = "holder"

func hold(t *testing.T, queue string, prefetch int, arguments amqp091.Table) *holder {
	t.Helper()
	h := &holder{t: t}
	dial := func(network, address string) (_ net.Conn, err error) {
		h.network, err = amqp091.DefaultDial(time.Minute)(network, address)
		return h.network, err
	}
	connection, err := amqp091.DialConfig(broker.URL(t), amqp091.Config{Dial: dial})
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	h.channel, err = connection.Channel()
	require.NoError(t, err)
	require.NoError(t, h.channel.Qos(prefetch, 0, false))
	h.deliveries, err = h.channel.Consume(queue, holderTag, false, false, false, false, arguments)
	require.NoError(t, err)
	return h
}

// gets waits for these messages. The rule states what relies on their order.
func (h *holder) gets(rule string, want ...int) {
	h.t.Helper()
	got := []int{}
	for range want {
		d := broker.Receive(h.t, h.deliveries, fmt.Sprintf("of %v only %v has come. %s", want, got, rule))
		n, err := strconv.Atoi(string(d.Body))
		require.NoError(h.t, err, "of %v only %v has come, the consumer has ended. %s", want, got, rule)
		h.got, got = append(h.got, d), append(got, n)
	}
	require.Equal(h.t, want, got, rule)
}

// settle acknowledges all that it has got from this place on, from 0.
func (h *holder) settle(from int) {
	h.t.Helper()
	for _, d := range h.got[from:] {
		require.NoError(h.t, d.Ack(false))
	}
	h.got = h.got[:from]
}

func (h *holder) close() {
	h.t.Helper()
	require.NoError(h.t, h.channel.Close())
}

// cut breaks the connection without a word of AMQP.
func (h *holder) cut() {
	h.t.Helper()
	require.NoError(h.t, h.network.Close())
}

// ready waits until a queue has so many messages that no consumer holds.
func ready(t *testing.T, queue string, want int) {
	t.Helper()
	testapp.Eventually(t, func() bool { return testapp.Depth(t, queue) == want }, "%d messages are ready", want)
}

// TestClosedChannelsReturnInOrder: an owner that ends, by a closed channel or a lost connection, gives back all that it
// held, in order and before what was behind it, whatever it has acknowledged between them.
func TestClosedChannelsReturnInOrder(t *testing.T) {
	t.Parallel()
	const (
		rule     = "Shutdown, pause, rewind and a crash of an ordered handler rely on it: it holds no other copy."
		messages = 600
		prefetch = 256
	)
	for name, end := range map[string]func(*holder){"channel": (*holder).close, "connection": (*holder).cut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			left := upTo(messages)
			queue := partition(t, messages, nil)
			owner := hold(t, queue, prefetch, nil)
			for round := range 7 {
				window := min(prefetch, len(left))
				owner.gets(rule, left[:window]...)
				if round%2 == 1 { // the head is held, all others are settled
					owner.settle(1)
					left = append(left[:1:1], left[window:]...)
					owner.gets(rule, left[1:min(prefetch, len(left))]...)
				}
				next := hold(t, queue, prefetch, nil)
				end(owner)
				owner = next
			}
		})
	}
}

// TestNackOfTheHeadIsOvertaken: a message that is nacked comes back behind those that are held, and stays there for the
// next owner.
func TestNackOfTheHeadIsOvertaken(t *testing.T) {
	t.Parallel()
	const rule = "If B gets 1 2, basic.nack of a part is safe: an ordered handler need not hold what waits."
	queue := partition(t, 6, nil)
	a, b := hold(t, queue, 2, nil), hold(t, queue, 2, nil)
	a.gets(rule, 1, 2)
	require.NoError(t, a.got[0].Nack(false, true))
	a.gets(rule, 1)
	a.close()
	b.gets(rule, 2, 1)
}

// TestConsumerOfHigherPriorityStopsThePartition: from 4.0 on, the active consumer gets nothing new until it has settled
// all that it holds. Then the one with the higher priority is active. Before 4.0 the priority has no effect.
func TestConsumerOfHigherPriorityStopsThePartition(t *testing.T) {
	t.Parallel()
	const rule = "Ordered handlers have no x-priority: one message that is held would stop all other keys."
	queue := partition(t, 6, nil)
	a := hold(t, queue, 2, nil)
	a.gets(rule, 1, 2)
	b := hold(t, queue, 2, amqp091.Table{"x-priority": int32(10)})
	require.NoError(t, a.got[0].Ack(false))
	if broker.Version(t) < 400 {
		a.gets(rule, 3)
		return
	}
	require.NoError(t, a.got[1].Ack(false))
	b.gets(rule, 3, 4)
	assert.Empty(t, a.deliveries, rule)
}
