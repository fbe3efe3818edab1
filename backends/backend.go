package backends

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Backend is a Pub/Sub with retries. Each publisher and subscriber that it returns has a connection of its own, and
// closes it with Close.
type Backend struct {
	// Name is the backend's name in the registry.
	Name string

	// Publisher connects a publisher for the app's topics.
	Publisher func() (message.Publisher, error)

	// Connect connects an app.
	Connect func(App) (*Connection, error)

	// Letters connects to the dead letters of an app. A backend that has none returns ErrNoLetters.
	Letters func(App) (*Letters, error)
	// Declare, where it is set, creates what must exist before the first message: for the app's topics, and for the
	// retries of a prefix.
	Declare func(prefix string, topics ...string) error

	// Remove, where it is set, removes these topics and the retries of a prefix, with all their messages.
	Remove func(prefix string, topics ...string) error
}

// App configures an app's retries.
type App struct {
	Group    string // the consumer group of handlers without one
	Prefix   string // of the topics of the retries
	Schedule backoff.Schedule

	// MaxHop is relay.Config.MaxHop.
	MaxHop time.Duration

	// Limit is the redelivery limit of the tiers: the server delivers a message again that is not acknowledged in this
	// time. The default is twice the hop of the tier, plus 10 seconds.
	Limit time.Duration

	// HandlerLimit is the redelivery limit of the app's topics. It must be longer than a handler takes. The default is
	// 30 seconds.
	HandlerLimit time.Duration

	// Lease is how long the lock of a redrive or discard lasts after its process has died, on Redis Streams and NATS.
	// The default is 30 seconds.
	Lease time.Duration
	// Observer is attached to the connection. Optional.
	Observer retry.Observer

	// BeforeCopy and AfterCopy, where they are set, are called before a copy is published, and after it is safe. On
	// RabbitMQ the topic is empty.
	BeforeCopy, AfterCopy func(topic string)
}

// grouped is a connection whose handlers have a group where they name none.
type grouped struct {
	retry.Connection
	group string
}

func (g grouped) options(given []retry.Options) []retry.Options {
	if len(given) == 0 {
		given = make([]retry.Options, 1)
	}
	given = slices.Clone(given)
	for i := range given {
		given[i].Group = cmp.Or(given[i].Group, g.group)
	}
	return given
}

func (g grouped) AddConsumerHandler(
	router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...retry.Options,
) *message.Handler {
	return g.Connection.AddConsumerHandler(router, name, topic, handler, g.options(options)...)
}

func (g grouped) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
	return g.Connection.AddHandler(router, name, subscribeTopic, publishTopic, handler, g.options(options)...)
}

func (g grouped) Subscriber(name string, options ...retry.Options) (message.Subscriber, error) {
	return g.Connection.Subscriber(name, g.options(options)...)
}

func (a App) limit(p relay.SubscriberParams) time.Duration {
	if a.Limit > 0 {
		return a.Limit
	}
	return 2*p.Hop + 10*time.Second
}

func (a App) lease() time.Duration {
	if a.Lease > 0 {
		return a.Lease
	}
	return 30 * time.Second
}

func (a App) handlerLimit() time.Duration {
	if a.HandlerLimit > 0 {
		return a.HandlerLimit
	}
	return 30 * time.Second
}

// Connection is an app's connection to a backend.
type Connection struct {
	retry.Connection

	// Relayed: a relay delays the messages. False: the server delays them.
	Relayed bool

	// DeadLetters connects a subscriber for the dead letters of a handler, and returns the topic to subscribe to.
	DeadLetters func(handler, topic string) (message.Subscriber, string, error)
}

var _ retry.Connection = (*Connection)(nil)

// parts are what relay.Connect needs. A limit is a redelivery limit.
type parts struct {
	publisher  func() (message.Publisher, error)                       // of the app's topics
	copies     func() (message.Publisher, error)                       // nil: publisher
	subscriber func(app App, group string) (message.Subscriber, error) // of handlers and dead letters
	// nil: the server delays return topics
	tier func(relay.SubscriberParams, time.Duration) (message.Subscriber, error)
	// nil: there is none, because of noLetters
	topics    func(App) (relayletters.Reader, error)
	noLetters string
	redrives  func(App) (message.Publisher, error) // to return topics and the app's topics; nil: publisher
}

// connect connects an app.
func (b parts) connect(app App, logger watermill.LoggerAdapter) (*Connection, error) {
	if b.copies == nil {
		b.copies = b.publisher
	}
	publisher, err := b.publisher()
	if err != nil {
		return nil, err
	}
	copies, err := b.copies()
	if err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	config := relay.Config{
		Publisher: observed{copies, app}, AppPublisher: publisher, Policy: retry.Policy{Schedule: app.Schedule},
		Prefix: app.Prefix, MaxHop: app.MaxHop, DelayedReturns: b.tier == nil,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) {
			if p.Handler != "" {
				return b.subscriber(app, p.Group)
			}
			return b.tier(p, app.limit(p))
		},
	}
	c, err := relay.Connect(config, logger)
	if err != nil {
		return nil, errors.Join(err, publisher.Close(), copies.Close())
	}
	if app.Observer != nil {
		c.Observe(app.Observer)
	}
	return &Connection{
		Connection: grouped{c, app.Group}, Relayed: b.tier != nil,
		DeadLetters: func(handler, _ string) (message.Subscriber, string, error) {
			s, err := b.subscriber(app, "retry-dead")
			return s, app.Prefix + ".dead." + handler, err
		},
	}, nil
}

// observed is the publisher of copies, with the app's functions around it.
type observed struct {
	message.Publisher
	app App
}

func (o observed) Publish(topic string, messages ...*message.Message) error {
	if o.app.BeforeCopy != nil {
		o.app.BeforeCopy(topic)
	}
	err := o.Publisher.Publish(topic, messages...)
	if err == nil && o.app.AfterCopy != nil {
		o.app.AfterCopy(topic)
	}
	return err
}
