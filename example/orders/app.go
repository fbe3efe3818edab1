package orders

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// Handler is the handler's name.
const Handler = "billing"

const startTimeout = 30 * time.Second

// Backend is one Pub/Sub, with all that the app needs of it.
type Backend struct {
	Name  string // product and address, for the heading
	Topic string // where orders go

	// Retries is what Connect of package config or relay returns. Its publisher publishes the orders.
	Retries middleware.Connection

	DeadLetters     message.Subscriber
	DeadLetterTopic string

	// Close is called after the router has closed: until then its handlers can publish copies.
	Close func() error
}

// app is an ordinary Watermill app: a router whose handler bills the orders of one topic.
type app struct {
	router  *message.Router
	stopped chan error // what the router's Run returned
}

func newApp(backend *Backend, bill message.NoPublishHandlerFunc, j *journal, logger watermill.LoggerAdapter) *app {
	router := message.NewDefaultRouter(logger)

	// The handler is added to the connection instead of the router. Observe is optional: here it prints the table.
	backend.Retries.AddConsumerHandler(router, Handler, backend.Topic, j.observe(bill), middleware.HandlerOptions{
		Middleware: func(c *middleware.TieredRetryConfig) { c.Observe = j.outcome },
	})
	return &app{router: router, stopped: make(chan error, 1)}
}

// start returns when the handlers consume. The queues and tiers exist then.
func (a *app) start() error {
	go func() { a.stopped <- a.router.Run(context.Background()) }()
	select {
	case <-a.router.Running():
		return nil
	case err := <-a.stopped:
		a.stopped <- err
		return errors.New("the router did not start")
	case <-time.After(startTimeout):
		return fmt.Errorf("the router did not start within %v", startTimeout)
	}
}

func (a *app) close() error {
	select {
	case err := <-a.stopped: // the router did not start, or has stopped by itself
		return err
	default:
		return errors.Join(a.router.Close(), <-a.stopped)
	}
}
