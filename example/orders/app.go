package orders

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

// Handler is the handler's name. If there are several handlers, a number is added to it.
const Handler = "billing"

const startTimeout = 30 * time.Second

// Backend is one Pub/Sub, with all that the app needs of it.
type Backend struct {
	Name  string // product and address, for the heading
	Topic string // where orders go

	Publisher  message.Publisher // of orders
	Subscriber message.Subscriber
	Retries    middleware.TieredRetryConfig

	// Relay provides the tiers on a Pub/Sub without TTL queues. Nil: the broker has tier queues.
	Relay *relay.Relay

	// Handlers is the number of handlers on the topic, for a Pub/Sub that delivers one message at a time to each. The default is 1.
	Handlers int

	DeadLetters     message.Subscriber
	DeadLetterTopic string

	// Close is called after the router has closed: until then its handlers can publish copies.
	Close func() error
}

// app is an ordinary Watermill app: a router whose handlers bill the orders of one topic.
type app struct {
	router  *message.Router
	stopped chan error // what the router's Run returned
}

func newApp(backend *Backend, bill message.NoPublishHandlerFunc, j *journal, logger watermill.LoggerAdapter) (*app, error) {
	router := message.NewDefaultRouter(logger)

	// The middleware decides the outcome of each delivery. The hooks are optional: here they print the table.
	retries := backend.Retries
	retries.OnRetry, retries.OnDeadLetter = j.retried, j.deadLettered
	retry, err := middleware.NewTieredRetry(retries, logger)
	if err != nil {
		return nil, err
	}

	// Add it to the handler, before all other middlewares.
	for _, name := range backend.handlers() {
		if backend.Relay != nil {
			backend.Relay.AddConsumerHandler(router, name, backend.Topic, backend.Subscriber, j.observe(bill)).AddMiddleware(retry.Middleware)
		} else {
			router.AddConsumerHandler(name, backend.Topic, backend.Subscriber, j.observe(bill)).AddMiddleware(retry.Middleware)
		}
	}
	return &app{router: router, stopped: make(chan error, 1)}, nil
}

func (b *Backend) handlers() []string {
	if b.Handlers < 2 {
		return []string{Handler}
	}
	var names []string
	for n := range b.Handlers {
		names = append(names, fmt.Sprintf("%s-%d", Handler, n+1))
	}
	return names
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
