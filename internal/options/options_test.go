package options_test

import (
	"testing"
	"time"

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

	wrong := retry.Options{Concurrency: -1, Policy: &retry.Policy{Schedule: backoff.Schedule{-1}}, CloseTimeout: -1,
		Prefetch: -1}
	_, err = options.One([]retry.Options{wrong}, connection)
	for _, fault := range []string{"Concurrency is -1", "Policy.Schedule: ", "CloseTimeout is -1ns", "Prefetch is -1"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = options.One([]retry.Options{{}, wrong}, connection)
	require.ErrorContains(t, err, "2 Options were given: give at most one")
	require.ErrorContains(t, err, "Options 2: ")
}
