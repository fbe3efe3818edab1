package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
)

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

func TestSuccessDoesNotAllocate(t *testing.T) {
	retry, _ := setup(t)
	h := retry.Middleware(succeed)
	msg := messageOf(context.Background())
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }))
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
			ctx, cancel := context.WithCancel(routerContext(b))
			defer cancel()
			msg := messageOf(ctx)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = row.h(msg)
			}
		})
	}
}

// BenchmarkFailure measures what the copy and its failure record cost, without a broker.
func BenchmarkFailure(b *testing.B) {
	ctx := routerContext(b)
	retry, err := configOf(discard{}).Make(nil)
	require.NoError(b, err)
	h := retry.Middleware(failing(errDown))
	msg := messageOf(ctx)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = h(msg)
	}
}

type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }
