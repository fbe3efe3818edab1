package middleware_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/backend"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestNewReportsAllFaultsAtOnce(t *testing.T) {
	_, err := retrymw.New(retry.Policy{MaxHold: -time.Second, PublishTimeout: -1, MaxAge: -1}, nil, nil)
	require.Error(t, err)
	for _, field := range []string{
		"backend", "Schedule", "MaxHold is -1s", "PublishTimeout is -1ns", "MaxAge is -1ns",
	} {
		assert.ErrorContains(t, err, field)
	}
}

// unusable is a backend without tiers.
type unusable struct{ settings }

func (unusable) Use(retry.Policy) (backend.Traits, error) { return backend.Traits{}, errDown }

func TestBackendRefusesAPolicy(t *testing.T) {
	config := configOf(&recorder{})
	_, err := retrymw.New(config.Policy, unusable{config}, nil)
	require.ErrorIs(t, err, errDown)
}
