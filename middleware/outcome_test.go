package middleware_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestFailurePublishesACopyToItsTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		failedAt := time.Now()
		produced, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("2", nil)}, fmt.Errorf("billing: %w", errDown)
		})(messageOf(routed))
		require.NoError(t, err, "the router acks the message once its copy is published")
		assert.Nil(t, produced)

		copied := sent.only(t)
		assert.Equal(t, "1s.orders", copied.topic)
		assert.Equal(t, "uuid-1", copied.msg.UUID)
		assert.Equal(t, "order 1", string(copied.msg.Payload))
		assert.Equal(t, message.Metadata{
			"trace":                 "abc",
			recordkey.Failures:      "1",
			recordkey.FirstFailedAt: "2000-01-01T00:00:00.000Z",
			recordkey.LastFailedAt:  "2000-01-01T00:00:00.000Z",
			recordkey.DueAt:         "2000-01-01T00:00:01.000Z",
			recordkey.Reason:        "billing: the bank is down",
			recordkey.ErrorType:     "*errors.errorString",
			recordkey.Topic:         topic,
			recordkey.Handler:       handler,
			delay.DelayedUntilKey:   "2000-01-01T00:00:01.000Z",
			delay.DelayedForKey:     "1s",
		}, copied.msg.Metadata)
		assert.Equal(t, failedAt.Add(30*time.Second), copied.deadline)
	})
}

func TestEachFailureUsesTheNextDelayUntilTheMessageIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		msg := messageOf(routed)
		for failure, want := range []string{"1s.orders", "5s.orders", "5s.orders", "1m.orders", "dead.orders"} {
			handles(t, tiered.Middleware(failing(errDown)), msg)
			last := sent.last()
			require.Equal(t, want, last.topic)
			require.Equal(t, fmt.Sprint(failure+1), last.msg.Metadata[recordkey.Failures])
			msg = redelivered(routed, last)
			time.Sleep(time.Minute) // the tier, in the bubble's time
		}
		dead := sent.last().msg
		assert.Equal(t, message.Metadata{
			"trace":                           "abc",
			recordkey.Failures:                "5",
			recordkey.FirstFailedAt:           "2000-01-01T00:00:00.000Z",
			recordkey.LastFailedAt:            "2000-01-01T00:04:00.000Z",
			recordkey.Reason:                  "the bank is down",
			recordkey.ErrorType:               "*errors.errorString",
			recordkey.Topic:                   topic,
			recordkey.Handler:                 handler,
			recordkey.DeadReason:              string(retry.DeadReasonExhausted),
			watermillmw.ReasonForPoisonedKey:  "the bank is down",
			watermillmw.PoisonedTopicKey:      topic,
			watermillmw.PoisonedHandlerKey:    handler,
			watermillmw.PoisonedSubscriberKey: "gochannel.GoChannel",
		}, dead.Metadata)
		assert.Equal(t, "order 1", string(dead.Payload))
	})
}

func TestMessageThatCannotBeUnmarshaledIsDeadLetteredWithoutACallOfItsHandler(t *testing.T) {
	tiered, sent := setup(t)
	msg := messageOf(routed)
	msg.Metadata[recordkey.UnmarshalError] = "no JSON"
	msg.Metadata[recordkey.Properties] = "raw"
	handles(t, tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	}), msg)
	dead := sent.only(t)
	assert.Equal(t, "dead.orders", dead.topic)
	assert.Equal(t, string(retry.DeadReasonUnmarshal), dead.msg.Metadata[recordkey.DeadReason])
	assert.Contains(t, dead.msg.Metadata[recordkey.Reason], "no JSON")
	assert.NotContains(t, dead.msg.Metadata, recordkey.UnmarshalError)
}

// A failure after an ack loses the message: its line is an error. The router does not log this one.
func TestNoCopyIsPublishedIfTheHandlerHasSettledTheMessage(t *testing.T) {
	for name, row := range map[string]struct {
		settle func(*message.Message) bool
		level  watermill.LogLevel
	}{"acked": {(*message.Message).Ack, watermill.ErrorLogLevel}, "nacked": {(*message.Message).Nack, watermill.InfoLogLevel}} {
		t.Run(name, func(t *testing.T) {
			logs, sent := watermill.NewCaptureLogger(), &recorder{}
			tiered, err := configOf(sent).Make(logs)
			require.NoError(t, err)
			_, err = tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				row.settle(msg)
				return nil, fmt.Errorf("%w: %w", errDown, context.Canceled)
			})(messageOf(routed))
			require.ErrorIs(t, err, errDown)
			assert.Empty(t, sent.copies)
			require.Len(t, logs.Captured(), 1)
			require.Len(t, logs.Captured()[row.level], 1)
			line := logs.Captured()[row.level][0]
			assert.Contains(t, line.Fields["reason"], errDown.Error())
			if row.level == watermill.ErrorLogLevel {
				assert.ErrorContains(t, line.Err, errDown.Error())
			}
		})
	}
}

// A subscriber may deliver messages for a while after its context has ended.
func TestShutdownGivesMessagesBackSlowlyAndCallsNoHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		ctx, cancel := context.WithCancel(routed)
		cancel()
		start := time.Now()
		_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
			t.Error("the handler was called")
			return nil, nil
		})(messageOf(ctx))
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, time.Second, time.Since(start))
		assert.Empty(t, sent.copies)
	})
}

func TestShutdownDoesNotInterruptAPublish(t *testing.T) {
	tiered, sent := setup(t)
	ctx, cancel := context.WithCancel(routed)
	sent.fail = func(int) error { cancel(); return nil }
	handles(t, tiered.Middleware(failing(errDown)), messageOf(ctx))
	assert.NoError(t, sent.only(t).ctxErr)
}

func TestCopyIsEqualToTheReceivedMessage(t *testing.T) {
	t.Run("the handler replaces payload and metadata", func(t *testing.T) {
		tiered, sent := setup(t)
		handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.UUID, msg.Payload, msg.Metadata = "other", nil, nil
			return nil, errDown
		}), messageOf(routed))
		assert.Equal(t, "uuid-1", sent.only(t).msg.UUID)
		assert.Equal(t, "order 1", string(sent.only(t).msg.Payload))
		assert.Equal(t, "abc", sent.only(t).msg.Metadata["trace"])
	})
	t.Run("the handler writes into payload and metadata, with DeepCopy", func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Policy.DeepCopy = true })
		handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.Payload[0] = 'X'
			msg.Metadata["trace"] = "changed"
			return nil, errDown
		}), messageOf(routed))
		assert.Equal(t, "order 1", string(sent.only(t).msg.Payload))
		assert.Equal(t, "abc", sent.only(t).msg.Metadata["trace"])
	})
	t.Run("the properties of the marshaler", func(t *testing.T) {
		tiered, sent := setup(t)
		msg := messageOf(routed)
		msg.Metadata[recordkey.Properties] = "typed headers"
		handles(t, tiered.Middleware(failing(errDown)), msg)
		assert.Equal(t, "typed headers", sent.only(t).msg.Metadata[recordkey.Properties])
	})
	t.Run("the copy is a message of its own", func(t *testing.T) {
		tiered, sent := setup(t)
		msg := messageOf(routed)
		handles(t, tiered.Middleware(failing(errDown)), msg)
		assert.NotSame(t, msg, sent.only(t).msg)
		assert.NotContains(t, msg.Metadata, recordkey.Failures, "the received message is not changed")
	})
}
