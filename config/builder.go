package config

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/door"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// Builder makes, around the app's own configuration, what its subscriber needs, and the middleware. It is for apps that
// keep watermill-amqp's subscriber. It is safe for concurrent use.
type Builder struct {
	app   *amqp.Config // a pointer, so that a struct that holds a builder does not print the password
	plain *door.Builder
}

// NewBuilder returns an error that joins all faults of the configuration. It does not connect.
func NewBuilder(config Config) (*Builder, error) {
	b, err := door.NewBuilder(config.plain())
	if err != nil {
		return nil, err
	}
	own := clone(config.AMQP)
	return &Builder{&own, b}, nil
}

// SubscriberConfig returns the app's configuration for amqp.NewSubscriber, with two changes. Its topology builder
// declares the retry topology beside the app's own at every Subscribe and reconnect. Its marshaler wraps the app's,
// reads messages that come back from a tier, and marks each message with the builder. Every call returns a new copy.
// Change nothing in it: what is declared is the configuration of the builder.
//
// Add the middleware of NewTieredRetry to every handler of that subscriber, and to no other. It refuses messages of
// other subscribers, also those of another builder: each is held, and the log has the reason. A handler without it
// behaves as with watermill-amqp alone: a message that it nacks comes back at once. It also gets messages that the
// app's marshaler cannot read, and the library's own metadata keys.
func (b *Builder) SubscriberConfig() amqp.Config {
	parts := b.plain.Subscriber()
	c := clone(*b.app)
	c.TopologyBuilder = topologyBuilder{topologyBuilderOf(c), parts.Declarer}
	c.Marshaler = parts.Marshaler
	return c
}

// NewTieredRetry returns the retry middleware for the handlers of the builder's subscribers. It opens a connection for
// the copies of failed messages: a copy counts as published when the broker has routed and confirmed it. A tier or a
// dead-letter queue that was deleted is declared again, unless VerifyOnly is set. Close the builder
// after the router has closed. A nil logger logs nothing.
func (b *Builder) NewTieredRetry(logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	return b.plain.NewTieredRetry(logger)
}

// Close closes the connections of the builder's middlewares. A Subscribe that waits for the broker returns an error.
func (b *Builder) Close() error { return b.plain.Close() }

// Observe attaches observers, such as those of package observe, to all handlers with a middleware of the builder,
// and to what these publish. What an observer does cannot change the outcome of a message. Its errors are logged. The
// observers have no Waiting, and the Health of the connections for copies only. Call it once for each observer.
func (b *Builder) Observe(observers ...retry.Observer) { b.plain.Observe(observers...) }

// Topology returns what the work queue of a topic needs on the broker. The app's own exchange and its binding are not
// part of it.
func (b *Builder) Topology(topic string) topology.Topology { return b.plain.Topology(topic) }

// Format implements fmt.Formatter. It prints address, prefix and schedule, without the password in the address.
func (b Builder) Format(state fmt.State, verb rune) {
	if b.plain != nil {
		b.plain.Format(state, verb)
		return
	}
	_, _ = state.Write([]byte("Builder(none)"))
}

// DeadLetterSubscriberConfig returns a configuration for amqp.NewSubscriber that reads dead letters: Subscribe to a
// topic reads the dead-letter queue of the topic's work queue, whatever the prefix and schedule of the app that wrote
// them. It needs only the app's own configuration: address, names and marshaler. That is copied and never modified.
//
// The group is the Group of the handler (retry.Options) whose dead letters are read. Its work queue is named
// "<topic>_<group>", and Queue.GenerateName may be nil. Without a group ("") Queue.GenerateName names the work queue.
//
// It declares nothing. If the dead-letter queue does not exist, Subscribe returns an error. If the queue is deleted
// later, the subscriber logs the error at every attempt to consume again, and reads on when the app has declared the
// queue again.
//
// Every message has a failure record. If the broker itself dead-lettered the message, its dead reason is the broker's:
// delivery_limit, rejected, expired or maxlen. An ack removes the dead letter. Do not add the retry middleware to its
// handlers.
//
// The error joins all faults of the configuration: those for which NewBuilder refuses its field AMQP, except a queue
// that is not durable. It does not connect.
func DeadLetterSubscriberConfig(app amqp.Config, group string) (amqp.Config, error) {
	reader, err := door.NewDeadLetterReader(appOf(app), group)
	if err != nil {
		return amqp.Config{}, err
	}
	c := clone(app)
	c.TopologyBuilder = topologyBuilder{topologyBuilderOf(c), reader}
	c.Marshaler = reader.Marshaler
	c.Queue.GenerateName = reader.QueueName
	c.Exchange.GenerateName = func(string) string { return "" }
	c.Consume.Exclusive = false
	return c, nil
}
