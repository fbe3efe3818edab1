package testapp

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/retry"
)

// Send publishes to a queue and waits for the confirms.
func Send(t testing.TB, exchange, key string, messages ...amqp091.Publishing) {
	t.Helper()
	channel := broker.Channel(t)
	require.NoError(t, channel.Confirm(false))
	confirms := make([]*amqp091.DeferredConfirmation, 0, len(messages))
	for _, m := range messages {
		m.DeliveryMode = amqp091.Persistent
		confirm, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		require.True(t, confirm.Wait())
	}
}

// Orders returns messages as watermill-amqp publishes them, with identities from 0.
func Orders(n int) []amqp091.Publishing {
	all := make([]amqp091.Publishing, n)
	for i := range all {
		msg := message.NewMessage(ID(i), []byte("order "+ID(i)))
		msg.Metadata.Set("trace", "t"+ID(i))
		all[i], _ = amqp.DefaultMarshaler{}.Marshal(msg)
	}
	return all
}

func ID(i int) string { return fmt.Sprintf("%05d", i) }

// Take consumes a queue until n messages have come, and returns them. Its consumer ends: where a queue is deleted and
// declared again at once, RabbitMQ may keep the consumers of the old one.
func Take(t testing.TB, queue string, n int) []amqp091.Delivery {
	t.Helper()
	channel := broker.Channel(t)
	deliveries, err := channel.Consume(queue, "take", true, false, false, false, nil)
	require.NoError(t, err)
	var taken []amqp091.Delivery
	for len(taken) < n {
		taken = append(taken, broker.Receive(t, deliveries, "message %d of %d in %s", len(taken)+1, n, queue))
	}
	require.NoError(t, channel.Cancel("take", false))
	return taken
}

// Depth returns the number of ready messages in a queue.
func Depth(t testing.TB, queue string) int {
	t.Helper()
	q, err := lookOf(t).at(queue)
	if err != nil { // the connection may have been closed since the last look
		q, err = lookOf(t).at(queue)
	}
	require.NoError(t, err)
	return q.Messages
}

// A look keeps the channel of one test, so that a poll opens no connection.
type look struct {
	mu      sync.Mutex
	t       testing.TB
	channel *amqp091.Channel
}

var looks sync.Map // the looks of the tests that run

func lookOf(t testing.TB) *look {
	l, known := looks.LoadOrStore(t, &look{t: t})
	if !known {
		t.Cleanup(func() { looks.Delete(t) })
	}
	return l.(*look)
}

func (l *look) at(queue string) (amqp091.Queue, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.channel == nil || l.channel.IsClosed() {
		l.channel = broker.Channel(l.t)
	}
	return l.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
}

// Saturate publishes to a queue until it refuses messages.
func Saturate(t testing.TB, queue string) {
	t.Helper()
	channel := broker.Channel(t)
	require.NoError(t, channel.Confirm(false))
	refused := 0 // in a row: a queue that has just become longer than its limit may still take a few
	broker.Eventually(t, time.Minute, func() bool {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false,
			amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("fills")})
		require.NoError(t, err)
		if confirm.Wait() {
			refused = 0
		} else {
			refused++
		}
		return refused == 20
	}, "%s refuses messages", queue)
}

// PutPolicy sets a policy until the test ends.
func PutPolicy(t testing.TB, name, pattern, definition string) {
	t.Helper()
	client := broker.Management(t)
	var d map[string]any
	require.NoError(t, json.Unmarshal([]byte(definition), &d))
	response, err := client.PutPolicy("/", name, rabbithole.Policy{Pattern: pattern, ApplyTo: "queues", Definition: d})
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Less(t, response.StatusCode, 300)
	t.Cleanup(func() { DeletePolicy(t, name) })
}

// DeletePolicy deletes a policy. It does nothing if the policy does not exist.
func DeletePolicy(t testing.TB, name string) {
	t.Helper()
	response, err := broker.Management(t).DeletePolicy("/", name)
	if response != nil {
		_ = response.Body.Close()
	}
	if err != nil {
		require.ErrorContains(t, err, "404")
	}
}

// Exists reports whether a queue exists.
func Exists(t testing.TB, queue string) bool {
	t.Helper()
	_, err := broker.Channel(t).QueueDeclarePassive(queue, true, false, false, false, nil)
	return err == nil
}

// Delete deletes a queue with what is in it.
func Delete(t testing.TB, queue string) {
	t.Helper()
	_, err := broker.Channel(t).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
}

// Messages returns messages with these UUIDs.
func Messages(uuids ...string) (all []*message.Message) {
	for _, uuid := range uuids {
		all = append(all, message.NewMessage(uuid, []byte("order "+uuid)))
	}
	return all
}

// IDs returns the identities of n messages.
func IDs(n int) (all []string) {
	for i := range n {
		all = append(all, ID(i))
	}
	return all
}

// Failures returns how often a message has failed.
func Failures(msg *message.Message) int {
	record, _ := retry.ReadRecord(msg.Metadata)
	return record.Failures
}
