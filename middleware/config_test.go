package middleware_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
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

func TestTiersOfAPolicy(t *testing.T) {
	policy := retry.Policy{
		Schedule:   backoff.Schedule{time.Second},
		Rules:      []retry.Rule{{If: retry.Is(errDown), Then: retry.RetryWith(backoff.Schedule{time.Minute})}},
		ExtraTiers: []time.Duration{time.Hour, time.Second},
	}
	assert.Equal(t, backoff.Schedule{time.Second, time.Minute, time.Hour}.Tiers(), retrymw.Tiers(policy, false))
}

// The app's lists may change later.
func TestMiddlewareKeepsItsOwnCopyOfTheSchedules(t *testing.T) {
	schedule, other := backoff.Schedule{time.Second}, backoff.Schedule{5 * time.Second}
	tiered, sent := setup(t, func(c *settings) {
		c.Policy.Schedule, c.Policy.Rules = schedule, []retry.Rule{{If: retry.Is(errLater), Then: retry.RetryWith(other)}}
	})
	schedule[0], other[0] = time.Hour, time.Hour
	for want, failure := range map[string]error{"1s.orders": errDown, "5s.orders": errLater} {
		handles(t, tiered.Middleware(failing(failure)), messageOf(routed))
		assert.Equal(t, want, sent.last().topic)
	}
}
