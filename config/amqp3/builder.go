package amqp3

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
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

// SubscriberConfig is that of config.Builder, for amqp.NewSubscriber of v3.
func (b *Builder) SubscriberConfig() amqp.Config {
	parts := b.plain.Subscriber()
	c := clone(*b.app)
	c.TopologyBuilder = topologyBuilder{topologyBuilderOf(c), parts.Declarer}
	c.Marshaler = parts.Marshaler
	return c
}

// NewTieredRetry is that of config.Builder.
func (b *Builder) NewTieredRetry(logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	return b.plain.NewTieredRetry(logger)
}

// Close closes the connections of the builder's middlewares. A Subscribe that waits for the broker returns an error.
func (b *Builder) Close() error { return b.plain.Close() }

// Observe is that of config.Builder.
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

// DeadLetterSubscriberConfig is that of package config: a configuration for amqp.NewSubscriber of v3 that reads the
// dead letters of a group ("" for a handler without one), and declares nothing. The error joins all faults.
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
