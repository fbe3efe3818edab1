package main

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

type nowhere struct{ observers *backend.Observers }

func (n nowhere) Use(retry.Policy) (backend.Traits, error) {
	return backend.Traits{Observers: n.observers}, nil
}

func (nowhere) Publish(backend.Copy) (backend.Destination, error) { return backend.Destination{}, nil }

// A wrapping is a middleware around a handler that succeeds.
type wrapping struct {
	name string
	h    message.HandlerFunc
}

// measureSuccess measures a bare handler and each middleware around it in turns, and compares within the turns.
func measureSuccess(b *bench) error {
	all, err := wrappings()
	if err != nil {
		return err
	}
	calls := b.Size(1_000_000, 10_000)
	took, err := claims.Alternate(b.Turns(15), len(all), func(i int) (float64, error) {
		msg := newMessage()
		begin := time.Now()
		for range calls {
			_, _ = all[i].h(msg)
		}
		return float64(time.Since(begin).Nanoseconds()) / float64(calls), nil
	})
	if err != nil {
		return err
	}
	over, allocations := make([][]float64, len(all)), make([]float64, len(all))
	for i, w := range all {
		for turn := range took[i] {
			over[i] = append(over[i], took[i][turn]-took[0][turn])
		}
		msg := newMessage()
		allocations[i] = testing.AllocsPerRun(1000, func() { _, _ = w.h(msg) })
		b.note("%s: %s ns over the bare handler, %v allocations", w.name, claims.Spread(over[i], "%.0f"), allocations[i])
	}
	b.claim("success_overhead", claims.Median(claims.Ratios(over[1], over[2])))
	b.claim("success_allocations", allocations[1])
	b.claim("observe_success_allocations", allocations[3]-allocations[1])
	return nil
}

// wrappings are the bare handler, the library's middleware, Watermill's, and the library's with observers.
func wrappings() ([]wrapping, error) {
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}
	tiered, err := middleware.New(policy, nowhere{}, nil)
	if err != nil {
		return nil, err
	}
	all := []wrapping{
		{"none", succeed},
		{"TieredRetry", tiered.Middleware(succeed)},
		{"Watermill's Retry", watermillmw.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(succeed)},
	}
	observers := &backend.Observers{}
	observers.Attach(observe.Prometheus(prometheus.NewRegistry()), retry.Observed{
		System: "bench", Health: func() retry.Health { return retry.Health{} },
	})
	observed, err := middleware.New(policy, nowhere{observers}, nil)
	if err != nil {
		return nil, err
	}
	return append(all, wrapping{"TieredRetry with Prometheus", observed.Middleware(succeed)}), nil
}

func newMessage() *message.Message {
	msg := message.NewMessage("uuid", []byte("payload"))
	msg.Metadata.Set("correlation_id", "abc")
	return msg
}
