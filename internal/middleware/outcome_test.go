package middleware_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// What a handler produces with an error is dropped. A redriven message has failed never before: all of its retries are
// left. It keeps its history, on its tiers and as a dead letter.
func TestEachFailureUsesTheNextDelayUntilTheMessageIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		h := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("2", nil)}, fmt.Errorf("billing: %w", errDown)
		})
		msg := messageOf(routed)
		redrivenTwice().Write(msg.Metadata)
		history := msg.Metadata[letters.RedrivenKey]
		for failure, want := range []string{"1s.orders", "5s.orders", "5s.orders", "1m.orders", "dead.orders"} {
			produced, err := h(msg)
			require.NoError(t, err, "the router acks the message once its copy is published")
			assert.Nil(t, produced)
			last := sent.last()
			assert.Equal(t, time.Now().Add(30*time.Second), last.deadline)
			assert.Equal(t, []string{want, "uuid-1", "order 1", fmt.Sprint(failure + 1)},
				[]string{last.topic, last.msg.UUID, string(last.msg.Payload), last.msg.Metadata[recordkey.Failures]})
			msg = redelivered(routed, last)
			time.Sleep(time.Minute) // the tier, in the bubble's time
		}
		wants := func(failures, last string, others message.Metadata) message.Metadata {
			maps.Copy(others, message.Metadata{
				"trace": "abc", letters.RedrivenKey: history, recordkey.Failures: failures, recordkey.Topic: topic, recordkey.Handler: handler,
				recordkey.FirstFailedAt: "2000-01-01T00:00:00.000Z", recordkey.LastFailedAt: last,
				recordkey.Reason: "billing: the bank is down", recordkey.ErrorType: "*errors.errorString",
			})
			return others
		}
		assert.Equal(t, wants("1", "2000-01-01T00:00:00.000Z", message.Metadata{
			recordkey.DueAt: "2000-01-01T00:00:01.000Z", delay.DelayedUntilKey: "2000-01-01T00:00:01.000Z",
			delay.DelayedForKey: "1s",
		}), sent.copies[0].msg.Metadata)
		assert.Equal(t, wants("5", "2000-01-01T00:04:00.000Z", message.Metadata{
			recordkey.DeadReason:             string(retry.DeadReasonExhausted),
			watermillmw.ReasonForPoisonedKey: "billing: the bank is down", watermillmw.PoisonedTopicKey: topic,
			watermillmw.PoisonedHandlerKey: handler, watermillmw.PoisonedSubscriberKey: "gochannel.GoChannel",
		}), sent.last().msg.Metadata)
	})
}

func TestMessageThatCannotBeUnmarshaledIsDeadLetteredWithoutACallOfItsHandler(t *testing.T) {
	tiered, sent := setup(t)
	msg := messageOf(routed)
	msg.Metadata[recordkey.UnmarshalError] = "no JSON"
	msg.Metadata[recordkey.Properties] = "raw"
	handles(t, tiered.Middleware(notCalled(t)), msg)
	dead := sent.only(t)
	assert.Equal(t, []any{"dead.orders", retry.DeadReasonUnmarshal}, []any{dead.topic, sent.record(t).DeadReason})
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

// A subscriber may deliver messages for a while after its context has ended. The text of the marshaler's error is in no
// error that the router logs.
func TestShutdownGivesMessagesBackSlowlyAndCallsNoHandler(t *testing.T) {
	for name, unreadable := range map[string]message.Metadata{"": nil, "cannot be unmarshaled": {
		recordkey.Properties: "x", recordkey.UnmarshalError: secretText,
	}} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, typeOnly)
			ctx, cancel := context.WithCancel(routed)
			cancel()
			msg := messageOf(ctx)
			maps.Copy(msg.Metadata, unreadable)
			_, err := tiered.Middleware(notCalled(t))(msg)
			require.ErrorIs(t, err, context.Canceled)
			assert.NotContains(t, err.Error(), secretText)
			assert.Equal(t, time.Second, time.Since(sent.began))
			assert.Empty(t, sent.copies)
		})
	}
}

func TestShutdownDoesNotInterruptAPublish(t *testing.T) {
	tiered, sent := setup(t)
	ctx, cancel := context.WithCancel(routed)
	sent.fail = func(int) error { cancel(); return nil }
	handles(t, tiered.Middleware(failing(errDown)), messageOf(ctx))
	assert.NoError(t, sent.only(t).ctxErr)
}

// The copy is a message of its own, with what the message had before its handler replaced it. What the handler writes
// into it is in the copy, too, without DeepCopy.
func TestCopyIsEqualToTheReceivedMessage(t *testing.T) {
	replaces := func(msg *message.Message) { msg.UUID, msg.Payload, msg.Metadata = "other", nil, nil }
	writes := func(msg *message.Message) { msg.Payload[0], msg.Metadata["trace"] = 'X', "changed" }
	for name, row := range map[string]struct {
		handler        func(*message.Message)
		deep           bool
		payload, trace string
	}{
		"replaces": {replaces, false, "order 1", "abc"}, "writes": {writes, false, "Xrder 1", "changed"},
		"writes, with DeepCopy": {writes, true, "order 1", "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) { c.Policy.DeepCopy = row.deep })
			msg := messageOf(routed)
			msg.Metadata[recordkey.Properties] = "typed headers"
			received := msg.Metadata
			handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				row.handler(msg)
				return nil, errDown
			}), msg)
			c := sent.only(t).msg
			assert.NotSame(t, msg, c)
			assert.NotContains(t, received, recordkey.Failures, "the received message is not changed")
			assert.Equal(t, []string{"uuid-1", row.payload, row.trace, "typed headers"},
				[]string{c.UUID, string(c.Payload), c.Metadata["trace"], c.Metadata[recordkey.Properties]})
		})
	}
}

// redrivenTwice is the history of a message that was redriven two times.
func redrivenTwice() letters.Redriven {
	once := letters.Redriven{}.Add(letters.PastRedrive{Run: "run 0", By: "me", At: time.Unix(0, 0)})
	return once.Add(letters.PastRedrive{Run: "run 1", By: "me", At: time.Unix(1, 0)})
}

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
		require.Len(t, sent.events, 3)
		for i, outcome := range []retry.Outcome{retry.Retried, retry.Parked, retry.DeadLettered} {
			c, e := copies[i], sent.events[i]
			assert.Equal(t, []any{"invoices", "printing", outcome != retry.DeadLettered}, []any{c.Topic, c.Handler, c.Tier > 0})
			assert.Equal(t, []any{"invoices", "printing", outcome}, []any{e.Topic, e.Handler, e.Outcome})
		}
		assert.Equal(t, "2", copies[2].Message.Metadata[recordkey.Failures], "the failure on the return topic is counted on top")
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
