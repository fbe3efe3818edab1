package backends

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

// Backend is a Pub/Sub with retries. Each publisher and subscriber that it returns has a connection of its own, and closes it
// with Close.
type Backend struct {
	// Name is the backend's name in the registry.
	Name string

	// Publisher connects a publisher for the app's topics.
	Publisher func() (message.Publisher, error)

	// Connect connects an app's retries.
	Connect func(App) (*Retries, error)

	// Declare, where it is set, creates what must exist before the first message: for the app's topics, and for the retries
	// of a prefix.
	Declare func(prefix string, topics ...string) error

	// Remove, where it is set, removes these topics and the retries of a prefix, with all their messages.
	Remove func(prefix string, topics ...string) error
}

// App configures an app's retries.
type App struct {
	Group    string // the consumer group
	Prefix   string // of the topics of the retries
	Schedule backoff.Schedule

	// MaxHop is relay.Config.MaxHop.
	MaxHop time.Duration

	// Limit is the redelivery limit of the tiers: the server delivers a message again that is not acknowledged in this time. The
	// default is twice the hop of the tier, plus 10 seconds.
	Limit time.Duration

	// HandlerLimit is the redelivery limit of the app's topics. It must be longer than a handler takes. The default is 30 seconds.
	HandlerLimit time.Duration

	// Configure, where it is set, can change the middleware's configuration.
	Configure func(*middleware.TieredRetryConfig)

	// Failures, where it is set, wraps the publisher of the messages that failed.
	Failures func(message.Publisher) message.Publisher
}

func (a App) failures(connect func() (message.Publisher, error)) (message.Publisher, error) {
	publisher, err := connect()
	if err == nil && a.Failures != nil {
		publisher = a.Failures(publisher)
	}
	return publisher, err
}

func (a App) limit(p relay.SubscriberParams) time.Duration {
	if a.Limit > 0 {
		return a.Limit
	}
	return 2*p.Hop + 10*time.Second
}

func (a App) handlerLimit() time.Duration {
	if a.HandlerLimit > 0 {
		return a.HandlerLimit
	}
	return 30 * time.Second
}

func (a App) configure(config middleware.TieredRetryConfig) middleware.TieredRetryConfig {
	if a.Configure != nil {
		a.Configure(&config)
	}
	return config
}

// Retries are an app's retries on a backend.
type Retries struct {
	// Config is the middleware's configuration.
	Config middleware.TieredRetryConfig

	// Relay delays the messages of the tiers. It is nil where the server delays them.
	Relay *relay.Relay

	// Subscriber connects a subscriber for one of the app's handlers.
	Subscriber func(handler string) (message.Subscriber, error)

	// Handle adds a handler with retries to the router.
	Handle func(router *message.Router, name, topic string, subscriber message.Subscriber, handler message.NoPublishHandlerFunc)

	// DeadLetters connects a subscriber for the dead letters of a handler, and returns the topic to subscribe to.
	DeadLetters func(handler, topic string) (message.Subscriber, string, error)

	// Close closes the connections of the retries. Close the router first.
	Close func() error
}

// parts are the publisher and subscribers that a relay needs. A limit is a redelivery limit.
type parts struct {
	failures   func() (message.Publisher, error)
	subscriber func(group string, limit time.Duration) (message.Subscriber, error)
	tier       func(relay.SubscriberParams, time.Duration) (message.Subscriber, error)
}

// connect connects the relay and the middleware of an app.
func (b parts) connect(app App, logger watermill.LoggerAdapter) (*Retries, error) {
	failures, err := app.failures(b.failures)
	if err != nil {
		return nil, err
	}
	r, err := relay.New(relay.Config{
		Publisher: failures, Schedule: app.Schedule, Prefix: app.Prefix, MaxHop: app.MaxHop,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) { return b.tier(p, app.limit(p)) },
	}, logger)
	if err != nil {
		return nil, errors.Join(err, failures.Close())
	}
	config := app.configure(r.TieredRetryConfig())
	retry, err := middleware.NewTieredRetry(config, logger)
	if err != nil {
		return nil, errors.Join(err, failures.Close())
	}
	return &Retries{
		Config: config, Relay: r,
		Subscriber: func(string) (message.Subscriber, error) { return b.subscriber(app.Group, app.handlerLimit()) },
		Handle: func(router *message.Router, name, topic string, s message.Subscriber, h message.NoPublishHandlerFunc) {
			r.AddConsumerHandler(router, name, topic, s, h).AddMiddleware(retry.Middleware)
		},
		DeadLetters: func(handler, _ string) (message.Subscriber, string, error) {
			s, err := b.subscriber("retry-dead", app.handlerLimit())
			return s, app.Prefix + ".dead." + handler, err
		},
		Close: func() error { return errors.Join(r.Close(), failures.Close()) },
	}, nil
}
