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
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestEachOutcomeHasAnEvent brings every outcome about, and has a row for each of them.
func TestEachOutcomeHasAnEvent(t *testing.T) {
	routed := routerContext(t)
	const took = 20 * time.Millisecond
	second := backoff.Tier(time.Second)
	toTier, toDead := retry.Destination{Topic: "1s.orders"}, retry.Destination{Topic: "dead.orders"}
	down := func(*message.Message) error { return errDown }
	again := retry.Record{Failures: 1, Topic: topic}
	type event struct {
		outcome     retry.Outcome
		failures    int
		snoozes     int
		age, took   time.Duration
		delay       time.Duration
		tier        backoff.Tier
		destination retry.Destination
		rule        string
		err         error
	}
	rows := []struct {
		record  retry.Record // of the message; the first failure was a minute ago
		handler func(*message.Message) error
		fail    func(try int) error
		stop    bool
		want    []event
	}{
		{handler: func(*message.Message) error { return nil }, want: []event{{outcome: retry.Processed, took: took}}},
		{record: again, handler: func(*message.Message) error { return nil }, want: []event{
			{outcome: retry.Recovered, failures: 1, age: time.Minute + took, took: took},
		}},
		{handler: down, want: []event{
			{outcome: retry.Retried, failures: 1, took: took, delay: time.Second, tier: second, destination: toTier, err: errDown},
		}},
		{record: again, handler: func(*message.Message) error { return errLater }, want: []event{
			{outcome: retry.Snoozed, failures: 1, snoozes: 1, age: time.Minute + took, took: took, delay: time.Second, tier: second, destination: toTier, rule: "later", err: errLater},
		}},
		{record: retry.Record{Failures: 1, Topic: topic, Remaining: 2 * time.Second}, want: []event{
			{outcome: retry.Parked, failures: 1, age: time.Minute, delay: 2 * time.Second, tier: second, destination: toTier},
		}},
		{record: retry.Record{Failures: 4, Topic: topic}, handler: down, want: []event{
			{outcome: retry.DeadLettered, failures: 5, age: time.Minute + took, took: took, destination: toDead, err: errDown},
		}},
		{record: again, handler: func(*message.Message) error { return context.Canceled }, want: []event{
			{outcome: retry.Discarded, failures: 2, age: time.Minute + took, took: took, rule: "discard", err: context.Canceled},
		}},
		{handler: down, fail: func(try int) error {
			if try == 1 {
				return errUnconfirmed
			}
			return nil
		}, want: []event{
			{outcome: retry.Held, failures: 1, took: took, delay: time.Second, tier: second, destination: toTier, err: errUnconfirmed},
			{
				outcome: retry.Retried, failures: 1, age: time.Minute, took: took, delay: 5 * time.Second, tier: backoff.Tier(5 * time.Second),
				destination: retry.Destination{Topic: "5s.orders"}, err: errDown,
			},
		}},
		{record: again, handler: func(*message.Message) error { return context.Canceled }, stop: true, want: []event{
			{outcome: retry.GivenBack, failures: 1, age: time.Minute + took, took: took, err: context.Canceled},
		}},
		{record: again, handler: func(msg *message.Message) error { msg.Ack(); return errDown }, want: []event{
			{outcome: retry.Settled, failures: 1, age: time.Minute + took, took: took, err: errDown},
		}},
	}
	seen := map[retry.Outcome]bool{}
	for _, row := range rows {
		outcome := row.want[0].outcome
		seen[outcome] = true
		t.Run(string(outcome), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events []event
				tiered, sent, s, _ := setupBound(t, tiersWait, snoozeLater, func(c *settings) {
					c.Policy.Rules = append(c.Policy.Rules, retry.Rule{Name: "discard", If: retry.Is(context.Canceled), Then: retry.Discard()})
					c.Observers = eventtest.Observers(func(e retry.Event) {
						assert.Equal(t, "uuid-1", e.MessageUUID)
						assert.Equal(t, topic, e.Topic)
						assert.Equal(t, handler, e.Handler)
						assert.Equal(t, message.Metadata{"trace": "abc"}, e.Metadata())
						require.NotNil(t, e.Context)
						events = append(events, event{e.Outcome, e.Record.Failures, e.Record.Snoozes, e.Age, e.Duration, e.Delay, e.Tier, e.Destination, e.Rule, e.Err})
					})
				})
				sent.fail = row.fail
				msg := messageOf(s.bind(routed))
				if row.record.Failures > 0 {
					row.record.FirstFailedAt = time.Now().Add(-time.Minute)
					row.record.Write(msg.Metadata)
				}
				_, _ = tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					if row.stop {
						s.stop()
					}
					time.Sleep(took)
					return nil, row.handler(msg)
				})(msg)
				assert.Equal(t, row.want, events)
			})
		})
	}
	for _, outcome := range retry.Outcomes() {
		assert.True(t, seen[outcome], "no row for %q", outcome)
	}
}

// The handler may replace the metadata, and the app may write into what it gets.
func TestEventHasTheMetadataThatTheMessageCameWith(t *testing.T) {
	var events []retry.Event
	tiered, _ := setup(t, observing(&events))
	for _, metadata := range []message.Metadata{{"trace": "abc", recordkey.Properties: "x"}, nil} {
		msg := messageOf(routerContext(t))
		msg.Metadata = metadata
		_, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata = message.Metadata{"other": "x"}
			return nil, errDown
		})(msg)
		require.NoError(t, err)
	}
	assert.Equal(t, message.Metadata{"trace": "abc"}, events[0].Metadata())
	assert.Empty(t, events[1].Metadata())
}

// What a success costs is paid for every message.
func TestSuccessWithoutObserveDoesNotAllocate(t *testing.T) {
	for name, change := range map[string]func(*settings){
		"Rules":  snoozeLater,
		"MaxAge": func(c *settings) { c.Policy.MaxAge = time.Hour },
		"MaxAgeFrom": func(c *settings) {
			c.Policy.MaxAge, c.Policy.MaxAgeFrom = time.Hour, func(*message.Message) time.Time { return time.Time{} }
		},
		"Jitter":        func(c *settings) { c.Policy.Jitter = 0.2 },
		"DelayArrivals": func(c *settings) { c.DelayArrivals = true },
		"ExtraTiers":    func(c *settings) { c.Policy.ExtraTiers = backoff.Ladder(time.Second, time.Hour) },
		"all but MaxAgeFrom": func(c *settings) {
			snoozeLater(c)
			c.Policy.MaxAge, c.DelayArrivals, c.TiersWait = time.Hour, true, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiered, _ := setup(t, change)
			h := tiered.Middleware(succeed)
			msg := messageOf(context.Background())
			assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }))
		})
	}
}
