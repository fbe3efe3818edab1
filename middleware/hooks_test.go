package middleware_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func TestHooksGetTheEventAndCannotChangeTheOutcome(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		var retried []retrymw.RetryEvent
		var dead []retrymw.DeadLetterEvent
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
			c.OnRetry = func(e retrymw.RetryEvent) { retried = append(retried, e); panic("in a hook") }
			c.OnDeadLetter = func(e retrymw.DeadLetterEvent) { dead = append(dead, e); panic("in a hook") }
		})
		_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
		require.NoError(t, err)
		permanent := backoff.Permanent(errDown)
		time.Sleep(time.Second)
		_, err = retry.Middleware(failing(permanent))(redelivered(ctx, sent.only(t)))
		require.NoError(t, err)
		assert.Equal(t, []retrymw.RetryEvent{{
			Topic: topic, Handler: handler, MessageUUID: "uuid-1", Failures: 1, Delay: time.Second, Tier: backoff.Tier(time.Second),
			DueAt: retried[0].DueAt, Destination: retrymw.Destination{Topic: "1s.orders"}, Err: errDown,
		}}, retried)
		assert.Equal(t, []retrymw.DeadLetterEvent{{
			Topic: topic, Handler: handler, MessageUUID: "uuid-1", Failures: 2, DeadReason: retrymw.DeadReasonPermanent,
			Destination: retrymw.Destination{Topic: "dead.orders"}, Err: permanent,
		}}, dead)
	})
}

// On RabbitMQ orders.dead is the queue, and dead.orders is only the routing key.
func TestLogsHaveTheQueueAndTheRoutingKey(t *testing.T) {
	logs := &logRecorder{}
	config := configOf(&recorder{})
	config.GenerateDeadLetterDestination = func(p retrymw.DeadLetterDestinationParams) (retrymw.Destination, error) {
		return retrymw.Destination{Topic: "dead." + p.Topic, Queue: p.Topic + ".dead"}, nil
	}
	retry, err := retrymw.NewTieredRetry(config, logs)
	require.NoError(t, err)
	_, err = retry.Middleware(failing(backoff.Permanent(errDown)))(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.Contains(t, logs.text.String(), "destination:orders.dead")
	assert.Contains(t, logs.text.String(), "publish_topic:dead.orders")
}
