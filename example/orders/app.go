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

// Handler is the handler's name. Where there are several, numbers follow it.
const Handler = "billing"

const startTimeout = 30 * time.Second

// Backend is all that the app knows of a Pub/Sub.
type Backend struct {
	Name  string // what answers there, for the heading
	Topic string // where orders go

	Publisher  message.Publisher // of orders
	Subscriber message.Subscriber
	Retries    middleware.TieredRetryConfig

	// Relay holds the tiers of a Pub/Sub without TTL queues. Without one the broker itself holds them.
	Relay *relay.Relay

	// Handlers is how many share the topic, for a Pub/Sub that hands each one message at a time. The default is 1.
	Handlers int

	DeadLetters     message.Subscriber
	DeadLetterTopic string

	// Close is called after the router has closed: until then its handlers may have failures to publish.
	Close func() error
}

// app is an ordinary Watermill app: a router whose handlers bill the orders of one topic.
type app struct {
	router  *message.Router
	stopped chan error // what the router's Run returned
}

func newApp(backend *Backend, bill message.NoPublishHandlerFunc, j *journal, logger watermill.LoggerAdapter) (*app, error) {
	router := message.NewDefaultRouter(logger)

	// The middleware decides what becomes of a message that failed. The hooks are optional: here they draw the table.
	retries := backend.Retries
	retries.OnRetry, retries.OnDeadLetter = j.failed, j.died
	retry, err := middleware.NewTieredRetry(retries, logger)
	if err != nil {
		return nil, err
	}

	// It goes on the handler, before all other middlewares.
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

// start returns once the handlers consume, and so once queues and tiers exist.
func (a *app) start() error {
	go func() { a.stopped <- a.router.Run(context.Background()) }()
	select {
	case <-a.router.Running():
		return nil
	case err := <-a.stopped:
		a.stopped <- err
		return errors.New("the router does not start")
	case <-time.After(startTimeout):
		return fmt.Errorf("the router does not start within %v", startTimeout)
	}
}

func (a *app) close() error {
	select {
	case err := <-a.stopped: // it did not start, or stopped by itself
		return err
	default:
		return errors.Join(a.router.Close(), <-a.stopped)
	}
}
