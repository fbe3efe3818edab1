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
	"github.com/tieredretry/watermill-retry/retry"
)

const calls = 1_000_000

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

// maxSuccessRatio is the highest allowed cost of this middleware on a success, relative to the cost of Watermill's Retry.
// Measurements are 0.06 to 0.08. The remainder allows for noise.
const maxSuccessRatio = 0.15

// row is a middleware around the bare handler.
type row struct {
	name string
	h    message.HandlerFunc
}

// measureSuccess measures a bare handler and each middleware around it in turns, and compares within the turns: the absolute
// times of a shared machine drift.
func measureSuccess(pairs int) ([]string, error) {
	config := middleware.TieredRetryConfig{
		Publisher: nowhere{},
		Schedule:  backoff.Exponential(time.Second, 5, 4),
		GenerateRetryDestination: func(middleware.RetryDestinationParams) (retry.Destination, error) {
			return retry.Destination{Topic: "retry"}, nil
		},
		GenerateDeadLetterDestination: func(middleware.DeadLetterDestinationParams) (retry.Destination, error) {
			return retry.Destination{Topic: "dead"}, nil
		},
	}
	tiered, err := middleware.NewTieredRetry(config, nil)
	if err != nil {
		return nil, err
	}
	poison, err := watermillmw.PoisonQueue(nowhere{}, "poison")
	if err != nil {
		return nil, err
	}
	rows := []row{
		{"TieredRetry", tiered.Middleware(succeed)},
		{"Watermill Retry", watermillmw.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(succeed)},
		{"Watermill PoisonQueue", poison(succeed)},
	}
	observed, err := observedRows(config)
	if err != nil {
		return nil, err
	}
	rows = append(rows, observed...)
	over := takeTurns(rows, pairs)
	fmt.Printf("a handler that succeeds, %d pairs of %d calls\n\n", pairs, calls)
	fmt.Printf("%-24s %40s %10s %28s\n", "middleware", "ns over the bare handler: median (min-max)", "allocs", "of Retry's: median (min-max)")
	var ratio, allocations, more float64
	for i, r := range rows {
		ratios := make([]float64, pairs)
		for turn := range ratios {
			ratios[turn] = over[i][turn] / over[1][turn]
		}
		msg := newMessage()
		allocs := testing.AllocsPerRun(1000, func() { _, _ = r.h(msg) })
		fmt.Printf("%-24s %22.1f (%.1f-%.1f) %10.0f %15.2f (%.2f-%.2f)\n", r.name, median(over[i]), slices.Min(over[i]), slices.Max(over[i]),
			allocs, median(ratios), slices.Min(ratios), slices.Max(ratios))
		if i == 0 {
			ratio, allocations = median(ratios), allocs
		}
		if r.name == observed[0].name {
			more = allocs - allocations
		}
	}
	return []string{
		claim("success_overhead", "", ratio, maxSuccessRatio),
		claim("success_allocations", "", allocations, 0),
		claim("observe_success_allocations", "", more, 2),
	}, nil
}

// takeTurns returns, for each row and turn, how many nanoseconds more a call takes than a call of the bare handler in that turn.
func takeTurns(rows []row, turns int) [][]float64 {
	over := make([][]float64, len(rows))
	for turn := range turns {
		spent := make([]float64, len(rows)+1)
		for i := range spent {
			i = (i + turn) % len(spent) // another row is first in each turn
			if i == len(rows) {
				spent[i] = nanoseconds(succeed)
			} else {
				spent[i] = nanoseconds(rows[i].h)
			}
		}
		for i := range rows {
			over[i] = append(over[i], spent[i]-spent[len(rows)])
		}
	}
	return over
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
