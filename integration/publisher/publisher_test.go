// Package publisher_test has what a broker answers to a publisher.
package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func declare(t testing.TB, arguments amqp091.Table) (queue string) {
	t.Helper()
	queue = broker.Name(t, "publisher")
	broker.Clean(t, queue)
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, arguments)
	require.NoError(t, err)
	return queue
}

// content empties the queue, and returns how often each message was in it.
func content(t testing.TB, queue string) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, d := range testapp.Take(t, queue, testapp.Depth(t, queue)) {
		all[string(d.Body)]++
	}
	return all
}

func open(t testing.TB, config publisher.Config) *publisher.Connection {
	t.Helper()
	config.Wire.URI = broker.URL(t)
	config.ConfirmTimeout = time.Hour // no test waits for it, on any machine
	connection, err := publisher.Open(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	return connection
}

func to(queue, body string) publisher.Message {
	return publisher.Message{Context: context.Background(), RoutingKey: queue, UUID: body,
		Publishing: amqp091.Publishing{Headers: amqp091.Table{"key": "value"}, Body: []byte(body)}}
}

// TestOutcomes: a message is confirmed as it was given, returned, or refused by a full queue.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	const room = 10
	queue := declare(t, amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(room), "x-overflow": "reject-publish"})
	p := open(t, publisher.Config{})
	for exchange, cause := range map[string]string{"amq.topic": "NO_ROUTE", queue + " missing": "NOT_FOUND"} {
		m := to("nowhere", "lost")
		m.Exchange = exchange
		err := p.SendOne(m)
		require.ErrorIs(t, err, publish.ErrUnroutable)
		var failed *failure.Error
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, []string{exchange, "nowhere", "lost"}, []string{failed.Exchange, failed.RoutingKey, failed.MessageUUID})
		assert.ErrorContains(t, err, cause)
		assert.Equal(t, cause == "NOT_FOUND", publisher.NoExchange(err))
	}
	want := map[string]int{}
	for _, id := range testapp.IDs(3 * room) {
		if err := p.SendOne(to(queue, id)); err == nil {
			want[id] = 1
		} else {
			require.ErrorIs(t, err, publish.ErrNacked)
			assert.ErrorContains(t, err, queue)
		}
	}
	require.Len(t, want, room)
	delivery, ok, err := broker.Channel(t).Get(queue, true)
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, testapp.ID(0), string(delivery.Body))
	assert.Equal(t, "value", delivery.Headers["key"])
	assert.IsType(t, "", delivery.Headers[publisher.IDHeader], "watermill-amqp takes only strings")
	assert.Len(t, delivery.Headers, 2)
	assert.EqualValues(t, amqp091.Persistent, delivery.DeliveryMode)
	delete(want, testapp.ID(0))
	require.Equal(t, want, content(t, queue))
}

// TestQueueThatWasFullTakesMessagesAgain: RabbitMQ 3.10 continues to refuse messages on a channel after the first refusal, also
// when the queue has room again.
func TestQueueThatWasFullTakesMessagesAgain(t *testing.T) {
	t.Parallel()
	queue := declare(t, amqp091.Table{"x-queue-type": "quorum", "x-overflow": "reject-publish"})
	testapp.PutPolicy(t, queue, regexp.QuoteMeta(queue), `{"max-length": 5}`)
	p := open(t, publisher.Config{})
	n, confirmed := 0, map[string]int{}
	try := func() error {
		n++
		err := p.SendOne(to(queue, testapp.ID(n)))
		if err == nil {
			confirmed[testapp.ID(n)] = 1
		}
		return err
	}
	testapp.Eventually(t, func() bool { return errors.Is(try(), publish.ErrNacked) }, "the queue is full")
	testapp.DeletePolicy(t, queue)
	testapp.Eventually(t, func() bool { return try() == nil }, "the queue has room again")
	require.Equal(t, confirmed, content(t, queue), "the queue contains no refused message")
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
			p := open(t, publisher.Config{MaxInFlight: maxInFlight})
			suspend(t, stuck)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var calls sync.WaitGroup
			for range maxInFlight/2 + 1 { // more than half
				m := to(stuck, "stuck")
				m.Context = ctx
				calls.Go(func() { assert.ErrorIs(t, p.SendOne(m), publish.ErrNotConfirmed) })
			}
			calls.Wait()
			for caller := range maxInFlight { // as many callers as slots: the publisher has lost no slot
				calls.Go(func() { assert.NoError(t, p.SendOne(to(healthy, testapp.ID(caller)))) })
			}
			calls.Wait()
			assert.Len(t, content(t, healthy), maxInFlight)
		})
	}
}

// TestMessagesWithoutRoomForTheID: the publisher still matches each return and each nack with its message. The channel that
// such a message has alone is closed once its outcome is known.
func TestMessagesWithoutRoomForTheID(t *testing.T) {
	t.Parallel()
	const frameMax, messages = 8192, 64
	queue := declare(t, nil)
	full := declare(t, amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(1), "x-overflow": "reject-publish"})
	config := publisher.Config{}
	config.Wire.AMQP = &amqp091.Config{FrameSize: frameMax, Properties: amqp091.Table{"connection_name": queue}}
	p := open(t, config)
	large := func(queue, body string) publisher.Message { // the header with the id needs one byte more than is free
		m := to(queue, body)
		const frame, content, deliveryMode, table, key, value = 8, 14, 1, 4, 1 + 1, 1 + 4
		m.Publishing.Headers = amqp091.Table{"h": strings.Repeat("x", frameMax-frame-content-deliveryMode-table-key-value)}
		return m
	}
	var calls sync.WaitGroup
	for i := range messages {
		calls.Go(func() {
			if i%2 == 0 {
				assert.NoError(t, p.SendOne(large(queue, fmt.Sprint(i))))
			} else {
				assert.ErrorIs(t, p.SendOne(large("nowhere", fmt.Sprint(i))), publish.ErrUnroutable)
			}
		})
		calls.Go(func() { assert.NoError(t, p.SendOne(to(queue, fmt.Sprint("other ", i)))) })
	}
	calls.Wait()
	require.NoError(t, p.SendOne(large(full, "fills")))
	require.ErrorIs(t, p.SendOne(large(full, "nacked")), publish.ErrNacked)
	testapp.Eventually(t, func() bool { // one of them is the shared one
		for line := range strings.Lines(broker.Ctl(t, "list_connections", "client_properties", "channels", "-q")) {
			if strings.Contains(line, queue) {
				return strings.HasSuffix(line, "\t1\n")
			}
		}
		return false
	}, "no channel of these messages stays open")
	got := content(t, queue)
	for i := range messages {
		assert.Equal(t, 1-i%2, got[fmt.Sprint(i)], i)
		assert.Equal(t, 1, got[fmt.Sprint("other ", i)], i)
	}
}
