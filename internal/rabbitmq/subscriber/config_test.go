package subscriber

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	err := Config{
		Concurrency:  70_000,
		Prefetch:     10,
		Consumer:     channel.Options{Tag: strings.Repeat("x", 256), Arguments: amqp091.Table{"x-priority": struct{}{}}},
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
	assert.Equal(t, []int{16, 16}, []int{c.Concurrency, c.Prefetch})
	assert.Equal(t, []time.Duration{30 * time.Second, 10 * time.Millisecond, 5 * time.Second}, []time.Duration{c.CloseTimeout, c.NackInitial, c.NackMax})
}

func TestConstructorsRefuseFaults(t *testing.T) {
	t.Parallel()
	const canary = "c4nary-s3cret"
	_, err := Open(wire.Config{URI: "amqp://user:12/" + canary + "@localhost/"}, nil)
	require.Error(t, err)
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), canary)
	_, err = NewSubscriber(nil, nil, Config{}, nil)
	require.ErrorContains(t, err, "the connection is nil")
	_, err = NewSubscriber(&Connection{}, nil, Config{Concurrency: -1}, nil)
	require.ErrorContains(t, err, "Concurrency")
}
