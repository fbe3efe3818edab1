package middleware_test

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// The Deduplicator of Watermill is added after the retry middleware.
func ExampleDeduplicationKey() {
	var rabbit retry.Connection // of Connect
	deduplicator := &middleware.Deduplicator{KeyFactory: retrymw.DeduplicationKey(nil)}
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(rabbit.Middleware, deduplicator.Middleware)
}
