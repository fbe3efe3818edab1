package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestSuccessDoesNotAllocate: what a success costs is paid for every message. Only that of a builder allocates.
func TestSuccessDoesNotAllocate(t *testing.T) {
	own := msgctx.WithOrigin(context.Background(), topic, handler)
	routed, stop := routerContext() // that of a stopped one has to be wrapped, and then each look for a value allocates
	t.Cleanup(stop)
	for name, row := range map[string]struct {
		change func(*settings)
		ctx    context.Context
	}{
		"plain": {func(*settings) {}, own},
		"MaxAgeFrom": {func(c *settings) {
			c.Policy.MaxAge, c.Policy.MaxAgeFrom = time.Hour, func(*message.Message) time.Time { return time.Time{} }
		}, own},
		"all but MaxAgeFrom": {func(c *settings) {
			snoozeLater(c)
			c.Policy.MaxAge, c.DelayArrivals, c.TiersWait = time.Hour, true, true
			c.Policy.Jitter, c.Policy.ExtraTiers = 0.2, backoff.Ladder(time.Second, time.Hour)
		}, own},
		"Breaker": {func(c *settings) { c.Policy.Breaker = &retry.Breaker{} }, own},
		"Breaker by key": {func(c *settings) {
			c.Policy.Breaker = &retry.Breaker{Key: func(msg *message.Message) string { return msg.Metadata["trace"] }}
		}, own},
		"a subscriber's message": {func(c *settings) { c.Source = sourceOf("email") }, routed},
		"no observer":            {observedBy(nil), routed},
		"a key": {func(c *settings) {
			c.Policy.Breaker = &retry.Breaker{Key: func(*message.Message) string { return "7" }}
		}, routed},
		"an observer": {observedBy(nil, backend.NopObserver{}), routed},
		"an observer of outcomes": {
			observedBy(nil, eventtest.OnEvent(func(e retry.Event) { _ = e.Outcome })), routed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiered, _ := setup(t, row.change)
			b := &msgctx.Subscription{Owner: "email", Gate: gate.New(16), Retry: tiered}
			bound := msgctx.NewContext(row.ctx, b)
			for way, h := range map[string]message.HandlerFunc{
				"Middleware": tiered.Middleware(succeed), "Dispatch": tiered.Dispatch(succeed),
			} {
				for _, ctx := range []context.Context{row.ctx, bound} {
					if ctx == row.ctx && (way == "Dispatch" || name == "a subscriber's message") {
						continue // it has no retry of its own
					}
					msg := messageOf(ctx)
					_, _ = h(msg)
					assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }), way)
				}
			}
		})
	}
	t.Run("a builder's message", func(t *testing.T) {
		tiered, _ := setup(t, func(c *settings) {
			c.Source = builder("email")
			c.Source.QueueName = func(topic string) string { return topic }
		})
		msg, h := messageOf(routed), tiered.Middleware(succeed)
		assert.EqualValues(t, 1, testing.AllocsPerRun(1000, func() {
			msg.SetContext(routed)
			msg.Metadata[msgctx.BuilderKey] = "email"
			_, _ = h(msg)
		}), "the context that names its queue")
	})
}

// BenchmarkSuccess measures what the middleware costs a handler that succeeds.
func BenchmarkSuccess(b *testing.B) {
	poison, err := watermillmw.PoisonQueue(&recorder{}, "poison")
	require.NoError(b, err)
	retry, _ := setup(b)
	for _, row := range []struct {
		name string
		h    message.HandlerFunc
	}{
		{"bare", succeed},
		{"TieredRetry", retry.Middleware(succeed)},
		{"WatermillRetry", watermillmw.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(succeed)},
		{"WatermillPoisonQueue", poison(succeed)},
	} {
		b.Run(row.name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(routed)
			defer cancel()
			msg := messageOf(ctx)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = row.h(msg)
			}
		})
	}
}

type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }
