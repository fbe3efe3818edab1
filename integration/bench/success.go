package main

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

type nowhere struct{}

func (nowhere) Use(retry.Policy) (backend.Traits, error) { return backend.Traits{}, nil }

func (nowhere) Publish(backend.Copy) (backend.Destination, error) { return backend.Destination{}, nil }

// measureSuccess measures a bare handler, and this library's and Watermill's middleware around it in turns, and
// compares within the turns.
func measureSuccess(b *bench) error {
	tiered, err := middleware.New(retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}, nowhere{}, nil)
	if err != nil {
		return err
	}
	names := []string{"none", "TieredRetry", "Watermill's Retry"}
	handlers := []message.HandlerFunc{
		succeed, tiered.Middleware(succeed),
		watermillmw.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(succeed),
	}
	calls := b.Size(1_000_000, 10_000)
	took, err := claims.Alternate(b.Turns(15), len(handlers), func(i int) (float64, error) {
		msg := message.NewMessage("uuid", []byte("payload"))
		msg.Metadata.Set("correlation_id", "abc")
		begin := time.Now()
		for range calls {
			_, _ = handlers[i](msg)
		}
		return float64(time.Since(begin).Nanoseconds()) / float64(calls), nil
	})
	if err != nil {
		return err
	}
	for i := range handlers[1:] {
		for turn, bare := range took[0] {
			took[i+1][turn] -= bare
		}
		b.note("%s: %s ns over the bare handler", names[i+1], claims.Spread(took[i+1], "%.0f"))
	}
	b.ratio("success_overhead", took[1], took[2])
	return nil
}
