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
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// TestEachOutcomeHasAnEvent brings every outcome about, and has a row for each of them.
func TestEachOutcomeHasAnEvent(t *testing.T) {
	routed := routerContext(t)
	const took = 20 * time.Millisecond
	second := backoff.Tier(time.Second)
	toTier, toDead := retrymw.Destination{Topic: "1s.orders"}, retrymw.Destination{Topic: "dead.orders"}
	down := func(*message.Message) error { return errDown }
	again := retrymw.Record{Failures: 1, Topic: topic}
	type event struct {
		outcome     retrymw.Outcome
		failures    int
		snoozes     int
		age, took   time.Duration
		delay       time.Duration
		tier        backoff.Tier
		destination retrymw.Destination
		rule        string
		err         error
	}
	rows := []struct {
		record  retrymw.Record // of the message; the first failure was a minute ago
		handler func(*message.Message) error
		fail    func(try int) error
		stop    bool
		want    []event
	}{
		{handler: func(*message.Message) error { return nil }, want: []event{{outcome: retrymw.Processed, took: took}}},
		{record: again, handler: func(*message.Message) error { return nil }, want: []event{
			{outcome: retrymw.Recovered, failures: 1, age: time.Minute + took, took: took},
		}},
		{handler: down, want: []event{
			{outcome: retrymw.Retried, failures: 1, took: took, delay: time.Second, tier: second, destination: toTier, err: errDown},
		}},
		{record: again, handler: func(*message.Message) error { return errLater }, want: []event{
			{outcome: retrymw.Snoozed, failures: 1, snoozes: 1, age: time.Minute + took, took: took, delay: time.Second, tier: second, destination: toTier, rule: "later", err: errLater},
		}},
		{record: retrymw.Record{Failures: 1, Topic: topic, Remaining: 2 * time.Second}, want: []event{
			{outcome: retrymw.Parked, failures: 1, age: time.Minute, delay: 2 * time.Second, tier: second, destination: toTier},
		}},
		{record: retrymw.Record{Failures: 4, Topic: topic}, handler: down, want: []event{
			{outcome: retrymw.DeadLettered, failures: 5, age: time.Minute + took, took: took, destination: toDead, err: errDown},
		}},
		{record: again, handler: func(*message.Message) error { return context.Canceled }, want: []event{
			{outcome: retrymw.Discarded, failures: 2, age: time.Minute + took, took: took, rule: "discard", err: context.Canceled},
		}},
		{handler: down, fail: func(try int) error {
			if try == 1 {
				return errUnconfirmed
			}
			return nil
		}, want: []event{
			{outcome: retrymw.Held, failures: 1, took: took, delay: time.Second, tier: second, destination: toTier, err: errUnconfirmed},
			{
				outcome: retrymw.Retried, failures: 1, age: time.Minute, took: took, delay: 5 * time.Second, tier: backoff.Tier(5 * time.Second),
				destination: retrymw.Destination{Topic: "5s.orders"}, err: errDown,
			},
		}},
		{record: again, handler: func(*message.Message) error { return context.Canceled }, stop: true, want: []event{
			{outcome: retrymw.GivenBack, failures: 1, age: time.Minute + took, took: took, err: context.Canceled},
		}},
		{record: again, handler: func(msg *message.Message) error { msg.Ack(); return errDown }, want: []event{
			{outcome: retrymw.Settled, failures: 1, age: time.Minute + took, took: took, err: errDown},
		}},
	}
	seen := map[retrymw.Outcome]bool{}
	for _, row := range rows {
		outcome := row.want[0].outcome
		seen[outcome] = true
		t.Run(string(outcome), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events []event
				retry, sent, s, _ := setupBound(t, tiersWait, snoozeLater, func(c *retrymw.TieredRetryConfig) {
					c.Rules = append(c.Rules, retrymw.Rule{Name: "discard", If: retrymw.Is(context.Canceled), Then: retrymw.Discard()})
					c.Observe = func(e retrymw.Event) {
						assert.Equal(t, "uuid-1", e.MessageUUID)
						assert.Equal(t, topic, e.Topic)
						assert.Equal(t, handler, e.Handler)
						assert.Equal(t, message.Metadata{"trace": "abc"}, e.Metadata())
						require.NotNil(t, e.Context)
						events = append(events, event{e.Outcome, e.Record.Failures, e.Record.Snoozes, e.Age, e.Duration, e.Delay, e.Tier, e.Destination, e.Rule, e.Err})
					}
				})
				sent.fail = row.fail
				msg := messageOf(s.bind(routed))
				if row.record.Failures > 0 {
					row.record.FirstFailedAt = time.Now().Add(-time.Minute)
					row.record.Write(msg.Metadata)
				}
				_, _ = retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
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
	for _, outcome := range retrymw.Outcomes() {
		assert.True(t, seen[outcome], "no row for %q", outcome)
	}
}

// The handler may replace the metadata, and the app may write into what it gets.
func TestEventHasTheMetadataThatTheMessageCameWith(t *testing.T) {
	var events []retrymw.Event
	retry, _ := setup(t, observing(&events))
	for _, metadata := range []message.Metadata{{"trace": "abc", retrymw.PropertiesKey: "x"}, nil} {
		msg := messageOf(routerContext(t))
		msg.Metadata = metadata
		_, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
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
	for name, change := range map[string]func(*retrymw.TieredRetryConfig){
		"Rules":  snoozeLater,
		"MaxAge": func(c *retrymw.TieredRetryConfig) { c.MaxAge = time.Hour },
		"MaxAgeFrom": func(c *retrymw.TieredRetryConfig) {
			c.MaxAge, c.MaxAgeFrom = time.Hour, func(*message.Message) time.Time { return time.Time{} }
		},
		"Jitter":        func(c *retrymw.TieredRetryConfig) { c.Jitter = 0.2 },
		"DelayArrivals": func(c *retrymw.TieredRetryConfig) { c.DelayArrivals = true },
		"ExtraTiers":    func(c *retrymw.TieredRetryConfig) { c.ExtraTiers = backoff.Ladder(time.Second, time.Hour) },
		"all but MaxAgeFrom": func(c *retrymw.TieredRetryConfig) {
			snoozeLater(c)
			c.MaxAge, c.DelayArrivals, c.TiersWait = time.Hour, true, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			retry, _ := setup(t, change)
			h := retry.Middleware(succeed)
			msg := messageOf(context.Background())
			assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }))
		})
	}
}
