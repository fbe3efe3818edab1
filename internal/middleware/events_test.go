package middleware_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// handledBefore is what an Inbox does with a duplicate.
func handledBefore(msg *message.Message) error {
	msgctx.Lookup(msg).Repeat()
	return nil
}

// TestObserverSeesEachOutcome brings every outcome about. An observer sees a begin where the handler is called, and the
// outcome. Its context is in the event, in the copy and in the log lines. The metadata are those that the message came
// with: the handler may replace them.
func TestObserverSeesEachOutcome(t *testing.T) {
	const took = 20 * time.Millisecond
	second := backoff.Tier(time.Second)
	toTier, toDead := "1s.orders", "dead.orders"
	down, canceled := func(*message.Message) error { return errDown }, func(*message.Message) error { return context.Canceled }
	again, last := retry.Record{Failures: 1, Topic: topic}, retry.Record{Failures: 4, Topic: topic}
	type event struct {
		outcome     retry.Outcome
		failures    int
		snoozes     int
		age, took   time.Duration
		delay       time.Duration
		tier        backoff.Tier
		destination string
		rule        string
		err         error
	}
	retried := event{
		outcome: retry.Retried, failures: 1, took: took, delay: time.Second, tier: second, destination: toTier, err: errDown,
	}
	// afterAMinute is an outcome of a message whose first failure was a minute ago.
	afterAMinute := func(outcome retry.Outcome, failures int, err error) event {
		return event{outcome: outcome, failures: failures, age: time.Minute + took, took: took, err: err}
	}
	dead := afterAMinute(retry.DeadLettered, 5, errDown)
	dead.destination = toDead
	blocked, discarded := dead, afterAMinute(retry.Discarded, 2, context.Canceled)
	blocked.outcome, discarded.rule = retry.Blocked, "discard"
	held, later := retried, retried
	held.outcome, held.err = retry.Held, errUnconfirmed
	later.age, later.delay = time.Minute, 5*time.Second
	later.tier, later.destination = backoff.Tier(later.delay), "5s.orders"
	rows := map[string]struct {
		record  retry.Record // of the message; the first failure was a minute ago
		handler func(*message.Message) error
		fail    func(try int) error
		stop    bool
		parked  bool // the handler is not called
		blocks  bool
		want    []event
	}{
		"success": {
			handler: func(*message.Message) error { return nil }, want: []event{{outcome: retry.Processed, took: took}},
		},
		"recovery": {record: again, handler: func(*message.Message) error { return nil },
			want: []event{afterAMinute(retry.Recovered, 1, nil)}},
		"duplicate": {record: again, handler: handledBefore, want: []event{
			{outcome: retry.Duplicate, failures: 1, age: time.Minute + took},
		}},
		"failure": {handler: down, want: []event{retried}},
		"snooze": {record: again, handler: func(*message.Message) error { return errLater }, want: []event{{
			outcome: retry.Snoozed, failures: 1, snoozes: 1, age: time.Minute + took, took: took,
			delay: time.Second, tier: second, destination: toTier, rule: "later", err: errLater,
		}}},
		"rest of a delay": {record: retry.Record{Failures: 1, Topic: topic, Remaining: 2 * time.Second}, parked: true,
			want: []event{{
				outcome: retry.Parked, failures: 1, age: time.Minute, delay: 2 * time.Second, tier: second, destination: toTier,
			}}},
		"last failure": {record: last, handler: down, want: []event{dead}},
		"block":        {record: last, handler: down, blocks: true, want: []event{blocked}},
		"discard":      {record: again, handler: canceled, want: []event{discarded}},
		"hold":         {handler: down, fail: firstly(errUnconfirmed), want: []event{held, later}},
		"shutdown": {record: again, handler: canceled, stop: true,
			want: []event{afterAMinute(retry.GivenBack, 1, context.Canceled)}},
		"own ack": {record: again, handler: func(msg *message.Message) error { msg.Ack(); return errDown },
			want: []event{afterAMinute(retry.Settled, 1, errDown)}},
	}
	seen := map[retry.Outcome]bool{}
	for name, row := range rows {
		seen[row.want[0].outcome] = true
		bubble(t, name, func(t *testing.T) {
			w := &witness{name: "a"}
			tiered, sent, s, logs := setupBound(t, tiersWait, snoozeLater, observedBy(nil, w),
				func(c *settings) {
					c.Blocks = row.blocks
					discard := retry.Rule{Name: "discard", If: retry.Is(context.Canceled), Then: retry.Discard()}
					c.Policy.Rules = append(c.Policy.Rules, discard)
				})
			sent.fail = row.fail
			bound := s.bind(routed)
			msg := messageOf(bound)
			if row.record.Failures > 0 {
				row.record.FirstFailedAt = time.Now().Add(-time.Minute)
				row.record.Write(msg.Metadata)
			}
			came := msg.Metadata
			record, _ := retry.ReadRecord(came)
			var handled context.Context
			_, _ = tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				handled = msg.Context()
				msg.Metadata = message.Metadata{"other": "x"}
				if row.stop {
					s.stop()
				}
				time.Sleep(took)
				return nil, row.handler(msg)
			})(msg)

			var events []event
			for _, e := range w.events {
				assert.Equal(t, []any{"uuid-1", topic, handler}, []any{e.MessageUUID, e.Topic, e.Handler})
				assert.Equal(t, came, e.Metadata)
				assert.Equal(t, !row.parked, e.Context.Value(beginKey{"a"}) == 1)
				events = append(events, event{
					e.Outcome, e.Record.Failures, e.Record.Snoozes, e.Age, e.Duration, e.Delay, e.Tier, e.Destination,
					e.Rule, e.Err,
				})
			}
			assert.Equal(t, row.want, events)
			if row.parked {
				assert.Empty(t, w.arrivals)
				return
			}
			arrival := retry.Event{
				Context: bound, Topic: topic, Handler: handler, MessageUUID: "uuid-1", Metadata: came, Record: record,
			}
			assert.Equal(t, []retry.Event{arrival}, w.arrivals)
			assert.Equal(t, 1, handled.Value(beginKey{"a"}))
			for _, c := range sent.copies {
				assert.Equal(t, 1, c.msg.Context().Value(beginKey{"a"}))
			}
			lines := strings.Count(logs.String(), "message_uuid:uuid-1")
			assert.Equal(t, lines, strings.Count(logs.String(), "call_a:1"), logs.String())
		})
	}
	for _, outcome := range retrymw.Outcomes {
		assert.True(t, seen[outcome], "no row for %q", outcome)
	}
}

// On RabbitMQ orders.dead is the queue, and dead.orders is only the routing key.
func TestLogsHaveTheQueueAndTheRoutingKey(t *testing.T) {
	tiered, sent := setup(t, func(c *settings) {
		c.Destination = func(c backend.Copy) (backend.Destination, error) {
			return backend.Destination{Topic: "dead." + c.Topic, Queue: c.Topic + ".dead"}, nil
		}
	})
	handles(t, tiered.Middleware(failing(backoff.Permanent(errDown))), messageOf(routed))
	assert.Contains(t, sent.logs.String(), "destination:orders.dead")
	assert.Contains(t, sent.logs.String(), "publish_topic:dead.orders")
}
