package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
)

const calls = 1_000_000

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

// measureSuccess takes turns between a bare handler and each middleware around it, and compares within the pairs.
func measureSuccess(pairs int) ([]string, error) {
	retry, err := middleware.NewTieredRetry(middleware.TieredRetryConfig{
		Publisher: nowhere{},
		Schedule:  backoff.Exponential(time.Second, 5, 4),
		GenerateRetryDestination: func(middleware.RetryDestinationParams) (middleware.Destination, error) {
			return middleware.Destination{Topic: "retry"}, nil
		},
		GenerateDeadLetterDestination: func(middleware.DeadLetterDestinationParams) (middleware.Destination, error) {
			return middleware.Destination{Topic: "dead"}, nil
		},
	}, nil)
	if err != nil {
		return nil, err
	}
	poison, err := watermillmw.PoisonQueue(nowhere{}, "poison")
	if err != nil {
		return nil, err
	}
	fmt.Printf("a handler that succeeds, %d pairs of %d calls\n\n", pairs, calls)
	fmt.Printf("%-24s %40s %10s\n", "middleware", "ns over the bare handler: median (min-max)", "allocs")
	var claims []string
	for _, row := range []struct {
		name string
		h    message.HandlerFunc
	}{
		{"TieredRetry", retry.Middleware(succeed)},
		{"Watermill Retry", watermillmw.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(succeed)},
		{"Watermill PoisonQueue", poison(succeed)},
	} {
		over := make([]float64, pairs)
		for i := range over {
			over[i] = nanoseconds(row.h) - nanoseconds(succeed)
		}
		msg := newMessage()
		allocations := testing.AllocsPerRun(1000, func() { _, _ = row.h(msg) })
		fmt.Printf("%-24s %22.1f (%.1f-%.1f) %10.0f\n", row.name, median(over), slices.Min(over), slices.Max(over), allocations)
		if row.name == "TieredRetry" {
			claims = append(claims,
				claim("success_overhead", "ns", median(over), 50),
				claim("success_allocations", "", allocations, 0))
		}
	}
	return claims, nil
}

func newMessage() *message.Message {
	msg := message.NewMessage("uuid", []byte("payload"))
	msg.Metadata.Set("correlation_id", "abc")
	return msg
}

func nanoseconds(h message.HandlerFunc) float64 {
	msg := newMessage()
	begin := time.Now()
	for range calls {
		_, _ = h(msg)
	}
	return float64(time.Since(begin).Nanoseconds()) / calls
}
