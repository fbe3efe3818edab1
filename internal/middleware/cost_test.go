//go:build !race

// With the race detector each part of the code is slower by another factor.

package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
)

// TestSuccessCostsLittle compares what the middleware adds to a success with what Watermill's Retry adds, by the fastest
// of many turns: load takes time from some turns only.
func TestSuccessCostsLittle(t *testing.T) {
	tiered, _ := setup(t)
	msg := messageOf(context.Background())
	handlers := [3]message.HandlerFunc{
		succeed, tiered.Middleware(succeed),
		watermillmw.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware(succeed),
	}
	fastest := [3]time.Duration{time.Hour, time.Hour, time.Hour}
	for range 10 {
		for i, h := range handlers {
			began := time.Now()
			for range 20_000 {
				_, _ = h(msg)
			}
			fastest[i] = min(fastest[i], time.Since(began))
		}
	}
	own, theirs := fastest[1]-fastest[0], fastest[2]-fastest[0]
	assert.Less(t, own, theirs/2, "of 20,000 messages. It is a seventh to a quarter")
}
