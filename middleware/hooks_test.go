package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestObserveGetsTheEventAndCannotChangeTheOutcome(t *testing.T) {
	type traceID struct{}
	ctx := context.WithValue(routerContext(t), traceID{}, "trace-1")
	synctest.Test(t, func(t *testing.T) {
		var events []retry.Event
		tiered, sent := setup(t, func(c *settings) {
			c.Observers = eventtest.Observers(func(e retry.Event) { events = append(events, e); panic("in Observe") })
		})
		failedAt := time.Now().UTC()
		_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
			time.Sleep(20 * time.Millisecond)
			return nil, errDown
		})(messageOf(ctx))
		require.NoError(t, err)
		permanent := backoff.Permanent(errDown)
		time.Sleep(time.Second)
		_, err = tiered.Middleware(failing(permanent))(redelivered(ctx, sent.only(t)))
		require.NoError(t, err)

		require.Len(t, events, 2)
		for _, e := range events {
			assert.Equal(t, "trace-1", e.Context.Value(traceID{}))
			metadata := e.Metadata()
			assert.Equal(t, message.Metadata{"trace": "abc"}, metadata, "without the failure record")
			metadata["trace"] = "changed"
			assert.Equal(t, "abc", e.Metadata()["trace"], "a copy")
		}
		failedAt = failedAt.Add(20 * time.Millisecond)
		record := retry.Record{
			Failures: 1, FirstFailedAt: failedAt, LastFailedAt: failedAt, DueAt: failedAt.Add(time.Second),
			Reason: errDown.Error(), ErrorType: "*errors.errorString", Topic: topic, Handler: handler,
		}
		withoutFunctions := func(e retry.Event) retry.Event {
			return retry.Event{
				Outcome: e.Outcome, Topic: e.Topic, Handler: e.Handler, MessageUUID: e.MessageUUID, Record: utc(e.Record), Age: e.Age, Duration: e.Duration,
				Delay: e.Delay, Tier: e.Tier, Destination: e.Destination, Rule: e.Rule, Err: e.Err,
			}
		}
		assert.Equal(t, retry.Event{
			Outcome: retry.Retried, Topic: topic, Handler: handler, MessageUUID: "uuid-1", Record: record, Duration: 20 * time.Millisecond,
			Delay: time.Second, Tier: backoff.Tier(time.Second), Destination: retry.Destination{Topic: "1s.orders"}, Err: errDown,
		}, withoutFunctions(events[0]))
		record.Failures, record.LastFailedAt, record.DueAt = 2, failedAt.Add(time.Second), time.Time{}
		record.DeadReason, record.Subscriber, record.ErrorType = retry.DeadReasonPermanent, "gochannel.GoChannel", events[1].Record.ErrorType
		assert.Equal(t, retry.Event{
			Outcome: retry.DeadLettered, Topic: topic, Handler: handler, MessageUUID: "uuid-1", Record: record, Age: time.Second,
			Destination: retry.Destination{Topic: "dead.orders"}, Err: permanent,
		}, withoutFunctions(events[1]))
	})
}

func utc(r retry.Record) retry.Record {
	r.FirstFailedAt, r.LastFailedAt, r.DueAt = r.FirstFailedAt.UTC(), r.LastFailedAt.UTC(), r.DueAt.UTC()
	return r
}

// On RabbitMQ orders.dead is the queue, and dead.orders is only the routing key.
func TestLogsHaveTheQueueAndTheRoutingKey(t *testing.T) {
	logs := &logRecorder{}
	config := configOf(&recorder{})
	config.Destination = func(c retrymw.Copy) (retry.Destination, error) {
		return retry.Destination{Topic: "dead." + c.Topic, Queue: c.Topic + ".dead"}, nil
	}
	tiered, err := config.Make(logs)
	require.NoError(t, err)
	_, err = tiered.Middleware(failing(backoff.Permanent(errDown)))(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.Contains(t, logs.text.String(), "destination:orders.dead")
	assert.Contains(t, logs.text.String(), "publish_topic:dead.orders")
}
