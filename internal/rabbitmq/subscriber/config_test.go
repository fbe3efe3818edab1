package subscriber

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	err := Config{
		Concurrency:  70_000,
		Prefetch:     10,
		Consumer:     ConsumerConfig{Tag: strings.Repeat("x", 256), Arguments: amqp091.Table{"x-priority": struct{}{}}},
		CloseTimeout: -time.Second,
		NackInitial:  time.Minute,
		NackMax:      time.Second,
	}.Validate()
	require.Error(t, err)
	for _, words := range []string{
		"subscriber config: ", "Concurrency: 70000, must be between 1 and 65535", "Prefetch: 10, must be between Concurrency, 70000, and 65535",
		"Consumer.Tag: has 256 bytes, at most 255", "Consumer.Arguments: ", "CloseTimeout: -1s", "NackInitial: 1m0s, at most NackMax, 1s",
	} {
		assert.ErrorContains(t, err, words)
	}
	for _, valid := range []Config{{}, {Concurrency: 1}, {Prefetch: 16}, {Concurrency: 65535}, {NackInitial: time.Minute}} {
		require.NoError(t, valid.Validate(), "%+v", valid)
	}
	for text, faulty := range map[string]Config{
		"Concurrency: -1": {Concurrency: -1}, "Prefetch: 15": {Prefetch: 15}, "Prefetch: 65536": {Prefetch: 65536}, "Prefetch: -1": {Prefetch: -1},
		"NackMax: -1ns": {NackMax: -1}, "NackInitial: -1ns": {NackInitial: -1},
	} {
		require.ErrorContains(t, faulty.Validate(), text)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	var c Config
	c.setDefaults()
	assert.Equal(t, "orders", c.QueueOf("orders"))
	assert.Equal(t, []int{16, 16}, []int{c.Concurrency, c.Prefetch})
	assert.Equal(t, []time.Duration{30 * time.Second, 10 * time.Millisecond, 5 * time.Second}, []time.Duration{c.CloseTimeout, c.NackInitial, c.NackMax})
}

func TestConstructorsRefuseFaults(t *testing.T) {
	t.Parallel()
	const canary = "c4nary-s3cret"
	_, err := Open(wire.Config{URI: "amqp://user:12/" + canary + "@localhost/"}, nil)
	require.Error(t, err)
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), canary)
	_, err = NewSubscriber(nil, Config{}, nil)
	require.ErrorContains(t, err, "the connection is nil")
	_, err = NewSubscriber(&Connection{}, Config{Concurrency: -1}, nil)
	require.ErrorContains(t, err, "Concurrency")
}

func TestDefaultUnmarshal(t *testing.T) {
	t.Parallel()
	msg, err := unmarshal(amqp091.Delivery{
		Body:    []byte("payload"),
		Headers: amqp091.Table{UUIDHeader: "uuid", "key": "value", "x-death": []any{}, "x-delivery-count": int64(1)},
	})
	require.NoError(t, err)
	assert.Equal(t, "uuid", msg.UUID)
	assert.Equal(t, message.Metadata{"key": "value"}, msg.Metadata)
	assert.True(t, bytes.Equal([]byte("payload"), msg.Payload))
	msg, err = unmarshal(amqp091.Delivery{})
	require.NoError(t, err)
	assert.Empty(t, msg.UUID)
}
