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
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// The router's context has the return topic, which must not appear in records and events.
func TestOriginReplacesTheTopicAndHandlerOfTheRouter(t *testing.T) {
	ctx := msgctx.WithOrigin(routed, "invoices", "printing")
	synctest.Test(t, func(t *testing.T) {
		var copies []backend.Copy
		tiered, sent := setup(t, tiersWait, func(c *settings) {
			c.Policy.Schedule = backoff.Schedule{time.Second}
			c.Destination = func(c backend.Copy) (backend.Destination, error) {
				copies = append(copies, c)
				return backend.Destination{Topic: "any"}, nil
			}
			observing(c)
		})
		h := tiered.Middleware(failing(backoff.RetryAfter(errDown, 2*time.Second)))
		handles(t, h, messageOf(ctx))
		handles(t, h, redelivered(ctx, sent.copies[0]))
		time.Sleep(time.Second)
		handles(t, h, redelivered(ctx, sent.copies[1]))

		require.Len(t, copies, 3)
		for i, waits := range []bool{true, true, false} {
			assert.Equal(t, "invoices", copies[i].Topic)
			assert.Equal(t, "printing", copies[i].Handler)
			assert.Equal(t, waits, copies[i].Tier > 0)
		}
		assert.Equal(t, "2", copies[2].Message.Metadata[recordkey.Failures], "the failure on the return topic is counted on top")
		require.Len(t, sent.events, 3)
		for i, outcome := range []retry.Outcome{retry.Retried, retry.Parked, retry.DeadLettered} {
			assert.Equal(t, outcome, sent.events[i].Outcome)
			assert.Equal(t, "printing", sent.events[i].Handler)
			assert.Equal(t, "invoices", sent.events[i].Topic)
		}
		last := sent.copies[2].msg.Metadata
		assert.Equal(t, "invoices", last[recordkey.Topic])
		assert.Equal(t, "printing", last[recordkey.Handler])
		assert.Equal(t, "printing", last["handler_poisoned"])
	})
}

// Pub/Subs that delay messages by themselves read only the keys of components/delay.
func TestDelayKeysAreNeverEarlierThanTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123456789 * time.Nanosecond)
		var due time.Time
		tiered, sent := setup(t, func(c *settings) {
			c.Observers = eventtest.Observers(func(e retry.Event) { due = e.Record.DueAt })
		})
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
		metadata := sent.only(t).msg.Metadata
		until, err := time.Parse(time.RFC3339, metadata[delay.DelayedUntilKey])
		require.NoError(t, err)
		assert.False(t, until.Before(due), "%v, due at %v", until, due)
		assert.Less(t, until.Sub(due), time.Millisecond)
		assert.Equal(t, "1s", metadata[delay.DelayedForKey])
	})
}

func TestDelayKeysAreRemovedWithTheRecord(t *testing.T) {
	tiered, sent := setup(t)
	handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
	retried := redelivered(routed, sent.only(t))
	retried.Metadata[recordkey.DueAt] = "2026-01-01T00:00:00.000Z"

	dead := redelivered(routed, sent.only(t))
	dead.Metadata[recordkey.DueAt] = "2026-01-01T00:00:00.000Z"
	handles(t, tiered.Middleware(failing(backoff.Permanent(errDown))), dead)
	assert.NotContains(t, sent.copies[1].msg.Metadata, delay.DelayedUntilKey)
	assert.NotContains(t, sent.copies[1].msg.Metadata, delay.DelayedForKey)

	produced, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		delayed := msg.Copy()
		delay.Message(delayed, delay.For(time.Hour))
		return []*message.Message{msg.Copy(), delayed}, nil
	})(retried)
	require.NoError(t, err)
	assert.Equal(t, message.Metadata{"trace": "abc"}, produced[0].Metadata)
	assert.Equal(t, "1h0m0s", produced[1].Metadata[delay.DelayedForKey], "a delay that the handler has set stays")
	assert.Contains(t, produced[1].Metadata, delay.DelayedUntilKey)
}
