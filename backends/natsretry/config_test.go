package natsretry

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestValidateReportsEveryFault(t *testing.T) {
	t.Parallel()
	err := Config{Prefix: "a..b", Lease: time.Millisecond, Replicas: 6}.Validate()
	for _, text := range []string{
		"Conn is nil", "Prefix is", "Lease is 1ms", "Replicas is 6", "Group is empty", "Policy.Schedule:",
	} {
		require.ErrorContains(t, err, text)
	}
	_, err = Connect(Config{}, nil)
	require.ErrorContains(t, err, "invalid natsretry.Config")
	_, err = Letters(Config{}, nil)
	require.ErrorContains(t, err, "Conn is nil")
	assert.NotContains(t, err.Error(), "Group")

	require.NoError(t, Config{
		Conn: new(nats.Conn), Group: "billing", Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
	}.Validate())
}
