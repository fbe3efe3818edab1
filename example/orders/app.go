// Package orders is an ordinary Watermill app that bills orders, and a demo around it: some orders fail, wait on
// retry tiers, come back when they are due, and are dead-lettered when their retries are used up. The app is the same
// on every Pub/Sub.
//
// app.go shows how an app uses the library, and provider.go a handler that fails. The other files are the demo.
package orders

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// Handler is the handler's name.
const Handler = "billing"

// Backend is one Pub/Sub, with all that the app needs of it.
type Backend struct {
	Name  string // product and address, for the heading
	Topic string // where orders go

	// Retries is what Connect of package config or relay returns. Its publisher publishes the orders.
	Retries retry.Connection

	// Closers are called in this order after the router has closed: until then its handlers can publish copies.
	Closers []func() error
}

// newApp returns the app: a router whose handler bills the orders of one topic.
func newApp(backend *Backend, bill message.NoPublishHandlerFunc, j *journal,
	logger watermill.LoggerAdapter) *message.Router {
	router := message.NewDefaultRouter(logger)

	// The handler is added to the connection instead of the router. The observer is optional: here it keeps
	// and prints the dead letters, which are on the server by then.
	backend.Retries.Observe(j)
	backend.Retries.AddConsumerHandler(router, Handler, backend.Topic, j.watch(bill))
	return router
}
