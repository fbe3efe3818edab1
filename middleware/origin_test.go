package middleware_test

import (
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

// TestOriginIsWhereTheRecordCounts: the router's context says the return topic, which nobody wants to see.
func TestOriginIsWhereTheRecordCounts(t *testing.T) {
	ctx := retrymw.WithOrigin(routerContext(t), "invoices", "printing")
	synctest.Test(t, func(t *testing.T) {
		var asked []retrymw.RetryDestinationParams
		var dead []retrymw.DeadLetterDestinationParams
		var retried []retrymw.RetryEvent
		var died []retrymw.DeadLetterEvent
		var parked []retrymw.ParkEvent
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
			c.Schedule = backoff.Schedule{time.Second}
			c.GenerateRetryDestination = func(p retrymw.RetryDestinationParams) (retrymw.Destination, error) {
				asked = append(asked, p)
				return retrymw.Destination{Topic: "tier"}, nil
			}
			c.GenerateDeadLetterDestination = func(p retrymw.DeadLetterDestinationParams) (retrymw.Destination, error) {
				dead = append(dead, p)
				return retrymw.Destination{Topic: "dead"}, nil
			}
			c.OnRetry = func(e retrymw.RetryEvent) { retried = append(retried, e) }
			c.OnPark = func(e retrymw.ParkEvent) { parked = append(parked, e) }
			c.OnDeadLetter = func(e retrymw.DeadLetterEvent) { died = append(died, e) }
		})
		h := retry.Middleware(failing(errDown))
		_, err := h(messageOf(ctx))
		require.NoError(t, err)
		_, err = h(again(ctx, sent.letters[0]))
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = h(again(ctx, sent.letters[1]))
		require.NoError(t, err)

		require.Len(t, asked, 2)
		assert.Equal(t, "invoices", asked[0].Topic)
		assert.Equal(t, "printing", asked[0].Handler)
		require.Len(t, dead, 1)
		assert.Equal(t, "invoices", dead[0].Topic)
		assert.Equal(t, "printing", dead[0].Handler)
		assert.Equal(t, 2, dead[0].Failures, "the record counts")
		assert.Equal(t, "printing", retried[0].Handler)
		assert.Equal(t, "invoices", parked[0].Topic)
		assert.Equal(t, "invoices", died[0].Topic)
		last := sent.letters[2].msg.Metadata
		assert.Equal(t, "invoices", last[retrymw.TopicKey])
		assert.Equal(t, "printing", last[retrymw.HandlerKey])
		assert.Equal(t, "printing", last["handler_poisoned"])
	})
}

func TestRecordOfAnotherOriginDoesNotCount(t *testing.T) {
	retry, sent := setup(t)
	msg := messageOf(retrymw.WithOrigin(routerContext(t), "invoices", "printing"))
	msg.Metadata[retrymw.FailuresKey], msg.Metadata[retrymw.TopicKey] = "4", topic
	_, err := retry.Middleware(failing(errDown))(msg)
	require.NoError(t, err)
	assert.Equal(t, "1", sent.only(t).msg.Metadata[retrymw.FailuresKey])
}

// TestDelayIsNeverEarlierThanTheDueTime: Pub/Subs that delay natively know only these keys.
func TestDelayIsNeverEarlierThanTheDueTime(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123456789 * time.Nanosecond)
		var due time.Time
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) { c.OnRetry = func(e retrymw.RetryEvent) { due = e.DueAt } })
		_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
		require.NoError(t, err)
		metadata := sent.only(t).msg.Metadata
		until, err := time.Parse(time.RFC3339, metadata[delay.DelayedUntilKey])
		require.NoError(t, err)
		assert.False(t, until.Before(due), "%v, due at %v", until, due)
		assert.Less(t, until.Sub(due), time.Millisecond)
		assert.Equal(t, "1s", metadata[delay.DelayedForKey])
	})
}

func TestDelayLeavesWithTheRecord(t *testing.T) {
	ctx := routerContext(t)
	retry, sent := setup(t)
	_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
	require.NoError(t, err)
	retried := again(ctx, sent.only(t))
	retried.Metadata[retrymw.DueAtKey] = "2026-01-01T00:00:00.000Z"

	dead := again(ctx, sent.only(t))
	dead.Metadata[retrymw.DueAtKey] = "2026-01-01T00:00:00.000Z"
	_, err = retry.Middleware(failing(backoff.Permanent(errDown)))(dead)
	require.NoError(t, err)
	assert.NotContains(t, sent.letters[1].msg.Metadata, delay.DelayedUntilKey)
	assert.NotContains(t, sent.letters[1].msg.Metadata, delay.DelayedForKey)

	produced, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		wished := msg.Copy()
		delay.Message(wished, delay.For(time.Hour))
		return []*message.Message{msg.Copy(), wished}, nil
	})(retried)
	require.NoError(t, err)
	assert.Equal(t, message.Metadata{"trace": "abc"}, produced[0].Metadata)
	assert.Equal(t, "1h0m0s", produced[1].Metadata[delay.DelayedForKey], "the handler's own wish stays")
	assert.Contains(t, produced[1].Metadata, delay.DelayedUntilKey)
}
