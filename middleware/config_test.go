package middleware_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	_, err := retrymw.NewTieredRetry(retrymw.TieredRetryConfig{Policy: retry.Policy{MaxHold: -time.Second, PublishTimeout: -1, MaxAge: -1}}, nil)
	require.Error(t, err)
	for _, field := range []string{
		"Publisher", "Schedule", "GenerateRetryDestination", "GenerateDeadLetterDestination", "MaxHold is -1s", "PublishTimeout is -1ns", "MaxAge is -1ns",
	} {
		assert.ErrorContains(t, err, field)
	}
}

func TestTiersThatAreNotDeclaredAreRefused(t *testing.T) {
	config := configOf(&recorder{})
	config.Policy.Schedule = backoff.Schedule{time.Second}
	config.Policy.Rules = []retry.Rule{{If: retry.Is(errDown), Then: retry.RetryWith(backoff.Schedule{time.Minute})}}
	config.Policy.ExtraTiers = []time.Duration{time.Hour, time.Second}
	assert.Equal(t, backoff.Schedule{time.Second, time.Minute, time.Hour}.Tiers(), config.Tiers())
	for _, declared := range config.Tiers() {
		config.DeclaredTiers = []backoff.Tier{declared}
		err := config.Validate()
		for _, tier := range config.Tiers() {
			if fault := "have the tier " + tier.String() + ", which is not declared"; tier != declared {
				require.ErrorContains(t, err, fault)
			} else {
				require.NotContains(t, err.Error(), fault)
			}
		}
	}
	config.DeclaredTiers = config.Tiers()
	require.NoError(t, config.Validate())
}

func TestMiddlewareKeepsItsOwnCopyOfTheSchedule(t *testing.T) {
	schedule := backoff.Schedule{time.Second}
	tiered, sent := setup(t, func(c *retrymw.TieredRetryConfig) { c.Policy.Schedule = schedule })
	schedule[0] = time.Hour
	_, err := tiered.Middleware(failing(errDown))(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.Equal(t, "1s.orders", sent.only(t).topic)
}
