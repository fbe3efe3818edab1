package backends

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Backend is a Pub/Sub with retries. Each publisher and subscriber that it returns has a connection of its own, and
// closes it with Close.
type Backend interface {
	// Publisher connects a publisher for the app's topics.
	Publisher() (message.Publisher, error)

	// Connect connects an app.
	Connect(App) (retry.Connection, error)

	// DeadLetters connects a subscriber for the dead letters of a handler, and returns the topic to subscribe to.
	DeadLetters(app App, handler, topic string) (message.Subscriber, string, error)

	// Letters connects to the dead letters of an app. A backend that has none returns ErrNoLetters.
	Letters(App) (letters.Store, error)

	// QueueOf returns the queue or topic of a handler's dead letters: the first parameter of the Store's methods.
	QueueOf(app App, handler, topic string) string
}

// ErrNoLetters is returned by backends that cannot look at their dead letters, or cannot remove single ones.
var ErrNoLetters = errors.New("this backend has no store of dead letters")

// App configures an app's retries.
type App struct {
	Group    string // the consumer group of handlers without one
	Prefix   string // of the topics of the retries; the default is "retry"
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

	// Hook is called for each copy. Optional.
	Hook Hook
}

// Hook is called before a copy is published, and after it is safe. On RabbitMQ the topic is empty.
type Hook interface {
	BeforeCopy(topic string)
	AfterCopy(topic string)
}

// named is the app with its prefix. Publishers and subscribers tell the topics of the retries by it.
func (a App) named() App {
	a.Prefix = cmp.Or(a.Prefix, "retry")
	return a
}

// limit is the redelivery limit of a subscriber.
func (a App) limit(p relay.SubscriberParams) time.Duration {
	switch {
	case p.Tier == 0 && a.HandlerLimit > 0:
		return a.HandlerLimit
	case p.Tier == 0:
		return 30 * time.Second
	case a.Limit > 0:
		return a.Limit
	default:
		return 2*p.Hop + 10*time.Second
	}
}

// group is the consumer group of a subscriber. All processes share the messages of the tiers.
func (a App) group(p relay.SubscriberParams) string {
	switch {
	case p.Tier > 0:
		return "retry-relay"
	case p.Group != "":
		return p.Group
	default:
		return a.Group
	}
}

func (a App) lease() time.Duration {
	if a.Lease > 0 {
		return a.Lease
	}
	return 30 * time.Second
}

// pubSub is what a backend with a relay differs in.
type pubSub interface {
	// publisher connects a publisher to the topics of an app and of its retries.
	publisher(App) (message.Publisher, error)

	// subscriber connects the subscriber of a handler or of a tier. Its limit and group are those of the App.
	subscriber(App, relay.SubscriberParams) (message.Subscriber, error)

	// reader connects to the dead-letter topics of an app.
	reader(App) (relayletters.Reader, error)
}

// relayed is a backend with a relay.
type relayed struct {
	pubSub
	logger watermill.LoggerAdapter

	// delays: the Pub/Sub itself delays what is published to return topics.
	delays bool
}

// Publisher implements Backend.
func (r relayed) Publisher() (message.Publisher, error) { return r.publisher(App{}) }

// Connect implements Backend.
func (r relayed) Connect(app App) (retry.Connection, error) {
	app = app.named()
	publisher, err := r.publisher(app)
	if err != nil {
		return nil, err
	}
	copies, err := r.publisher(app)
	if err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	c, err := relay.Connect(relay.Config{
		Publisher: hooked{copies, app.Hook}, AppPublisher: publisher, Policy: retry.Policy{Schedule: app.Schedule},
		Prefix: app.Prefix, MaxHop: app.MaxHop, DelayedReturns: r.delays,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) { return r.subscriber(app, p) },
	}, r.logger)
	if err != nil {
		return nil, errors.Join(err, publisher.Close(), copies.Close())
	}
	if app.Observer != nil {
		c.Observe(app.Observer)
	}
	return c, nil
}

// DeadLetters implements Backend.
func (r relayed) DeadLetters(app App, handler, topic string) (message.Subscriber, string, error) {
	s, err := r.subscriber(app.named(), relay.SubscriberParams{Handler: handler, Group: "retry-dead"})
	return s, r.QueueOf(app, handler, topic), err
}

// Letters implements Backend.
func (r relayed) Letters(app App) (letters.Store, error) {
	app = app.named()
	reader, err := r.reader(app)
	if err != nil {
		return nil, err
	}
	publisher, err := r.publisher(app)
	if err != nil {
		return nil, errors.Join(err, reader.Close())
	}
	return relayletters.Open(relayletters.Config{
		Publisher: hooked{publisher, app.Hook}, Reader: reader, Prefix: app.Prefix,
	})
}

// QueueOf implements Backend.
func (r relayed) QueueOf(app App, handler, _ string) string {
	return app.named().Prefix + ".dead." + handler
}

// hooked is the publisher of copies.
type hooked struct {
	message.Publisher
	hook Hook
}

func (h hooked) Publish(topic string, messages ...*message.Message) error {
	if h.hook != nil {
		h.hook.BeforeCopy(topic)
	}
	err := h.Publisher.Publish(topic, messages...)
	if err == nil && h.hook != nil {
		h.hook.AfterCopy(topic)
	}
	return err
}
