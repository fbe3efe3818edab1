package middleware_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	_, err := retrymw.NewTieredRetry(retrymw.TieredRetryConfig{MaxHold: -time.Second, PublishTimeout: -1, EarlyTolerance: -1}, nil)
	require.Error(t, err)
	for _, field := range []string{
		"Publisher", "Schedule", "GenerateRetryDestination", "GenerateDeadLetterDestination", "MaxHold is -1s", "PublishTimeout is -1ns", "EarlyTolerance is -1ns",
	} {
		assert.ErrorContains(t, err, field)
	}
}

func TestMiddlewareKeepsItsOwnCopyOfTheSchedule(t *testing.T) {
	schedule := backoff.Schedule{time.Second}
	retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) { c.Schedule = schedule })
	schedule[0] = time.Hour
	_, err := retry.Middleware(failing(errDown))(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.Equal(t, "1s.orders", sent.only(t).topic)
}
