package options_test

import (
	"io"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestOneOptions(t *testing.T) {
	connection := &retry.Policy{Schedule: backoff.Schedule{time.Second}, MaxAge: time.Hour}
	o, err := options.One(nil, connection)
	require.NoError(t, err)
	assert.Equal(t, retry.Options{Policy: connection}, o)

	o, err = options.One([]retry.Options{{Concurrency: 8}}, connection)
	require.NoError(t, err)
	assert.Equal(t, retry.Options{Concurrency: 8, Policy: connection}, o)

	own := &retry.Policy{Schedule: backoff.Schedule{time.Minute}}
	o, err = options.One([]retry.Options{{Policy: own}}, connection)
	require.NoError(t, err)
	assert.Same(t, own, o.Policy, "a policy is complete")

	wrong := retry.Options{Concurrency: -1, CloseTimeout: -1, Prefetch: -1, Policy: &retry.Policy{
		Schedule: backoff.Schedule{-1}, Jitter: 2, Rules: []retry.Rule{{If: retry.Is(io.EOF)}}, Breaker: &retry.Breaker{Window: -1}}}
	_, err = options.One([]retry.Options{wrong}, connection)
	for _, fault := range []string{
		"Concurrency is -1", "Policy.Schedule: ", "CloseTimeout is -1ns", "Prefetch is -1", "Policy.Jitter is 2", "Policy.Rules[0].Then",
		"Policy.Breaker.Window is -1ns",
	} {
		require.ErrorContains(t, err, fault)
	}
	_, err = options.One([]retry.Options{{}, wrong}, connection)
	require.ErrorContains(t, err, "2 Options were given: give at most one")
	require.ErrorContains(t, err, "Options 2: ")
}

// An app may change its lists, or use them for another policy.
func TestAPolicySharesNothingWithItsCopies(t *testing.T) {
	schedule, other, extra := backoff.Schedule{time.Second}, backoff.Schedule{time.Minute}, []time.Duration{time.Hour}
	rules := []retry.Rule{{Name: "busy", If: retry.Is(io.EOF), Then: retry.RetryWith(other)}}
	app := retry.Policy{Schedule: schedule, ExtraTiers: extra, Rules: rules, Breaker: &retry.Breaker{MaxPause: time.Minute}}
	copies := []retry.Policy{options.Clone(app), options.WithDefaults(app)}
	schedule[0], other[0], extra[0], rules[0].Name, app.Breaker.MaxPause = 0, 0, 0, "", 0
	for _, own := range copies {
		assert.Equal(t, backoff.Schedule{time.Second}, own.Schedule)
		assert.Equal(t, []time.Duration{time.Hour}, own.ExtraTiers)
		assert.Equal(t, "busy", own.Rules[0].Name)
		assert.Equal(t, backoff.Schedule{time.Minute}, own.Rules[0].Then.Schedule)
		assert.Equal(t, time.Minute, own.Breaker.MaxPause)
	}
}

func validated(given retry.Options) error {
	_, err := options.One([]retry.Options{given}, nil)
	return err
}

func TestAnOrderIsValidated(t *testing.T) {
	key := func(*message.Message) string { return "" }
	for _, valid := range []retry.Order{
		{}, {Key: key}, {Key: key, Partitions: 256, Block: true, ConsumerTimeout: time.Second},
	} {
		assert.NoError(t, validated(retry.Options{Order: valid}))
	}
	err := validated(retry.Options{Order: retry.Order{Block: true, ConsumerTimeout: time.Millisecond}})
	for _, fault := range []string{
		"Order.Key is nil", "Order.Block is true, but Order.Partitions is 0",
		"Order.ConsumerTimeout is 1ms, but Order.Partitions is 0",
	} {
		require.ErrorContains(t, err, fault)
	}
	err = validated(retry.Options{Order: retry.Order{Key: key, Partitions: 257, ConsumerTimeout: time.Millisecond}})
	require.ErrorContains(t, err, "Order.Partitions is 257: it must be between 0 (one process) and 256")
	require.ErrorContains(t, err, "Order.ConsumerTimeout is 1ms: it must be at least 1s")
}
