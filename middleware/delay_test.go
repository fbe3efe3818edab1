package middleware_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func TestRequestedDelayIsWaitedForOnTheTiers(t *testing.T) {
	ctx := routerContext(t)
	for _, row := range []struct {
		name      string
		requested time.Duration
		tiers     []string // the tiers that the message waits on, one after the other
	}{
		{"shorter than the shortest tier", 10 * time.Millisecond, []string{"1s"}},
		{"now", 0, []string{"1s"}},
		{"a tier", 5 * time.Second, []string{"5s"}},
		{"between two tiers", 3 * time.Second, []string{"5s"}},
		{"a little longer than the longest tier", time.Minute + 400*time.Millisecond, []string{"1m"}},
		{"longer than the longest tier", 2*time.Minute + 3*time.Second, []string{"1m", "1m", "5s"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parked := 0
				retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
					c.OnPark = func(retrymw.ParkEvent) { parked++ }
				})
				failedAt := time.Now()
				_, err := retry.Middleware(failing(backoff.RetryAfter(errDown, row.requested)))(messageOf(ctx))
				require.NoError(t, err)

				var calledAt time.Time
				for round := 0; calledAt.IsZero(); round++ {
					last := sent.copies[len(sent.copies)-1]
					require.Equal(t, row.tiers[round]+".orders", last.topic)
					assert.Equal(t, "1", last.msg.Metadata[retrymw.FailuresKey], "a round on a tier is not a failure")
					tier, err := backoff.ParseTier(row.tiers[round])
					require.NoError(t, err)
					time.Sleep(time.Duration(tier))
					_, err = retry.Middleware(func(*message.Message) ([]*message.Message, error) {
						calledAt = time.Now()
						return nil, nil
					})(redelivered(ctx, last))
					require.NoError(t, err)
				}
				assert.Len(t, sent.copies, len(row.tiers))
				assert.Equal(t, len(row.tiers)-1, parked)
				assert.GreaterOrEqual(t, calledAt.Sub(failedAt), row.requested-500*time.Millisecond, "the tolerance is half the shortest tier")
			})
		})
	}
}

func TestRequestedDelayIsAtMostMaxDelay(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		_, err := retry.Middleware(failing(backoff.RetryAfter(errDown, 200*365*24*time.Hour)))(messageOf(ctx))
		require.NoError(t, err)
		record, ok := retrymw.ReadRecord(sent.only(t).msg.Metadata)
		require.True(t, ok)
		assert.Equal(t, backoff.MaxDelay, time.Until(record.DueAt))
	})
}

func TestEarlyMessageIsParkedForTheRestOfItsDelay(t *testing.T) {
	ctx := routerContext(t)
	for _, row := range []struct {
		name   string
		early  time.Duration
		parked bool
	}{
		{"a millisecond", time.Millisecond, false},
		{"the tolerance, half the shortest tier", 500 * time.Millisecond, false},
		{"more than the tolerance", 501 * time.Millisecond, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var retryParams []retrymw.RetryDestinationParams
				retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
					generate := c.GenerateRetryDestination
					c.GenerateRetryDestination = func(p retrymw.RetryDestinationParams) (retrymw.Destination, error) {
						retryParams = append(retryParams, p)
						return generate(p)
					}
				})
				_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
				require.NoError(t, err)
				back := redelivered(ctx, sent.only(t))
				time.Sleep(time.Second - row.early)

				called := false
				_, err = retry.Middleware(func(*message.Message) ([]*message.Message, error) {
					called = true
					return nil, nil
				})(back)
				require.NoError(t, err)
				assert.Equal(t, !row.parked, called)
				if row.parked {
					parked := sent.copies[1]
					assert.Equal(t, "1s.orders", parked.topic)
					left := maps.Clone(back.Metadata)
					left[delay.DelayedForKey] = row.early.String()
					assert.Equal(t, left, parked.msg.Metadata, "only the rest of the delay changes, and no failure is counted")
					second := backoff.Tier(time.Second)
					assert.Equal(t, []retrymw.RetryDestinationParams{
						{Topic: topic, Handler: handler, Tier: second, Failures: 1}, {Topic: topic, Handler: handler, Tier: second},
					}, retryParams)
				}
			})
		})
	}
}
