package deadletter_test

import (
	"bytes"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// typed has a header of each type that the broker keeps.
func typed() amqp091.Table {
	return amqp091.Table{
		"nil": nil, "bool": true, "byte": byte(200), "int8": int8(-3), "int16": int16(-300), "uint16": uint16(65535), "int32": int32(-70000),
		"uint32": uint32(4e9), "int64": int64(1)<<62 + 1, "float32": float32(1.1), "float64": 0.1, "decimal": amqp091.Decimal{Scale: 2, Value: -314},
		"time": time.Unix(1700000000, 0), "string": "text", "bytes": []byte{0, 255}, "latin1": "caf\xe9",
		"array": []any{nil, int8(1), "a",
			amqp091.Table{"deep": []byte("x")}}, "table": amqp091.Table{"in": amqp091.Table{"t": int16(1)}},
	}
}

// TestALetterIsTheSameMessage: the handler gets each byte, property and typed header again, also after an export and an
// import.
func TestALetterIsTheSameMessage(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	letterQueue := deadletter.QueueOf(queue)
	payload := make([]byte, 256)
	for i := range payload {
		payload[i] = byte(i)
	}
	type call struct {
		uuid     string
		payload  []byte
		metadata message.Metadata
	}
	var mu sync.Mutex
	var calls []call
	a.Handle(queue, 1, func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call{msg.UUID, bytes.Clone(msg.Payload), maps.Clone(msg.Metadata)})
		return backoff.Permanent(errDown)
	})
	a.Run()
	channel := broker.Channel(t)
	require.NoError(t, channel.ExchangeDeclare(a.Queue("shop"), amqp091.ExchangeTopic, true, false, false, false, nil))
	require.NoError(t, channel.QueueBind(queue, "eu.#", a.Queue("shop"), false, nil))
	uri, err := amqp091.ParseURI(broker.URL(t))
	require.NoError(t, err)
	p := testapp.Orders(1)[0]
	maps.Copy(p.Headers, typed())
	p.Body, p.ContentType, p.ContentEncoding, p.Priority, p.CorrelationId, p.ReplyTo = payload, "application/json", "gzip", 4, "c", "r"
	p.MessageId, p.Timestamp, p.Type, p.AppId, p.UserId, p.Expiration = "m", time.Unix(1700000000,
		0), "t", "a", uri.Username, "600000"
	testapp.Send(t, a.Queue("shop"), "eu.orders", p)

	died := func(times int) *letters.Letter {
		t.Helper()
		broker.Eventually(t, soon, func() bool { return testapp.Depth(t, letterQueue) == 1 }, "the message is dead")
		l := list(t, open(t, broker.URL(t), a.Name), letterQueue)[0]
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, calls, times)
		return l
	}
	store := open(t, broker.URL(t), a.Name)
	first := died(1)
	assert.Equal(t, letters.Library, first.Kind)
	assert.Equal(t, testapp.ID(0), first.ID)
	assert.Equal(t, queue, first.Target)
	assert.Equal(t, payload, first.Payload)
	assert.Equal(t, map[string]string{
		"content_type": "application/json", "content_encoding": "gzip", "priority": "4", "correlation_id": "c", "reply_to": "r", "message_id": "m",
		"timestamp": "2023-11-14T22:13:20Z", "type": "t", "app_id": "a", "user_id": uri.Username, "exchange": a.Queue("shop"), "routing_key": "eu.orders",
		"delivery_mode": "2",
	}, first.Properties)
	want := map[string]any(typed())
	for key, value := range want {
		if _, isText := value.(string); isText {
			assert.Equal(t, value, first.Metadata[key])
			delete(want, key)
		}
	}
	assert.Equal(t, want, first.Headers)

	summary, err := store.Redrive(t.Context(), letterQueue, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)
	second := died(2)
	assert.Equal(t, 1, second.Redriven.Times)
	assert.Equal(t, errDown.Error(), second.Redriven.Redrives[0].Reason)
	assert.Equal(t, first.Properties, second.Properties)
	assert.Equal(t, first.Headers, second.Headers)
	assert.Equal(t, first.Metadata, second.Metadata)

	var file bytes.Buffer
	n, err := store.Export(t.Context(), letterQueue, letters.Filter{}, &file)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	testapp.CheckExport(t, file.Bytes())
	summary, err = store.Discard(t.Context(), letterQueue, letters.Discard{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)
	assert.Empty(t, list(t, store, letterQueue))
	summary, err = store.Import(t.Context(), &file, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)
	assert.Equal(t, second, died(2), "the imported letter is the exported one")

	_, err = store.Redrive(t.Context(), letterQueue, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, 2, died(3).Redriven.Times)
	for i, c := range calls {
		history := c.metadata[recordkey.Redriven]
		assert.Equal(t, i > 0, history != "")
		delete(c.metadata, recordkey.Redriven)
		assert.Equal(t, calls[0], c, "call %d", i)
	}
}

// TestALetterOfTheBroker: its record is in x-death, which stays when the letter is exported and imported.
func TestALetterOfTheBroker(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	a.Declare(queue) // its delivery limit is 20
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	letterQueue, store := deadletter.QueueOf(queue), open(t, broker.URL(t), a.Name)
	channel := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		for {
			d, found, err := channel.Get(queue, false)
			require.NoError(t, err)
			if !found {
				return testapp.Depth(t, letterQueue) == 1
			}
			require.NoError(t, d.Reject(true))
		}
	}, "the broker gives the message up")
	l := list(t, store, letterQueue)[0]
	assert.Equal(t, letters.Broker, l.Kind)
	assert.Equal(t, testapp.ID(0), l.ID)
	assert.Equal(t, queue, l.Target)
	assert.Equal(t, retry.DeadReason("delivery_limit"), l.Record.DeadReason)
	assert.Equal(t, 1, l.Record.Failures)
	assert.Contains(t, l.Record.Reason, queue)
	assert.WithinDuration(t, time.Now(), l.DeadAt(), time.Hour)
	assert.Equal(t, queue, l.Properties["routing_key"])

	file, err := exported(t, store, letterQueue)
	require.NoError(t, err)
	_, err = store.Import(t.Context(), file, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, []*letters.Letter{l}, list(t, store, letterQueue))

	_, err = store.Redrive(t.Context(), letterQueue, letters.Redrive{By: "ann@ops"})
	require.NoError(t, err)
	d := testapp.Take(t, queue, 1)[0]
	for _, key := range []string{"x-death", "x-first-death-queue", "x-last-death-queue", "x-first-death-reason"} {
		assert.NotContains(t, d.Headers, key)
	}
	history, redriven := letters.ReadRedriven(message.Metadata{recordkey.Redriven: d.Headers[recordkey.Redriven].(string)})
	require.True(t, redriven)
	assert.Equal(t, retry.DeadReason("delivery_limit"), history.Redrives[0].DeadReason)
	assert.Equal(t, "ann@ops", history.Redrives[0].By)
}
