package config

import (
	"fmt"
	"io"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// BuilderConfig configures NewBuilder.
type BuilderConfig struct {
	// AMQP is the app's own configuration, as amqp.NewDurableQueueConfig and its like return it, with the app's names,
	// arguments, marshaler and topology builder. Required. It is copied and never modified. Refused are NoRequeueOnNack and
	// Transactional, and streams, exclusive, auto-delete and server-named queues.
	AMQP amqp.Config

	// Schedule is the delay before each retry. Required. Every distinct delay is a tier with a queue of its own.
	Schedule backoff.Schedule

	// Prefix names the exchanges <prefix>, <prefix>.return and <prefix>.orphans, the queue <prefix>.orphans and the tier
	// queues <work queue>.<prefix>.<tier>. The default is "retry". Apps may share one; metadata keys do not depend on it.
	Prefix string

	// QueueType is the type of tier and dead-letter queues. The default is Quorum.
	QueueType QueueType

	// WorkQueueMode says what to do about the app's own queues. The default is Protect.
	WorkQueueMode WorkQueueMode

	// AllowUnprotectedQuorum accepts, on RabbitMQ 4.0 to 4.2, a work queue that is a quorum queue without a dead-letter
	// exchange among its arguments: for queues that a policy protects, which AMQP does not tell. The default is to refuse
	// them with ErrUnprotectedQuorum.
	AllowUnprotectedQuorum bool

	// VerifyOnly declares nothing, the app's own topology included: Subscribe fails where an exchange or queue is missing, and
	// what is deleted under way stays deleted while failures are held. For apps whose user may not configure anything;
	// Topology(topic).Declare, run by somebody who may, declares the topology. Whether the work queue is protected is not
	// checked, AMQP does not tell it to who does not declare.
	VerifyOnly bool
}

// shared is the configuration that all majors have, around a copy of the app's.
func (c BuilderConfig) shared() rabbitmq.Config {
	return rabbitmq.Config{
		App:                    appOf(clone(c.AMQP)),
		Config:                 topology.Config{Schedule: c.Schedule, Prefix: c.Prefix, QueueType: c.QueueType, WorkQueueMode: c.WorkQueueMode},
		AllowUnprotectedQuorum: c.AllowUnprotectedQuorum,
		VerifyOnly:             c.VerifyOnly,
	}
}

// Validate reports all faults of the configuration, joined. It does not ask the broker.
func (c BuilderConfig) Validate() error { return c.shared().Validate() }

// Format implements fmt.Formatter: it prints the configuration without the password in the broker's address.
func (c BuilderConfig) Format(state fmt.State, verb rune) {
	type plain BuilderConfig
	c.AMQP.Connection.AmqpURI = rabbitmq.Redacted(c.AMQP.Connection.AmqpURI)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), plain(c))
}

// Builder makes, around the app's own configuration, what its subscriber, its failure publisher and the middleware need. It
// is safe for concurrent use.
type Builder struct {
	app    *amqp.Config // behind a pointer it is not printed with a struct that holds a builder
	shared *rabbitmq.Builder
}

// NewBuilder checks the configuration, all faults at once. It does not connect.
func NewBuilder(config BuilderConfig) (*Builder, error) {
	shared, err := rabbitmq.New(config.shared())
	if err != nil {
		return nil, err
	}
	app := clone(config.AMQP)
	if app.TopologyBuilder == nil {
		app.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
	return &Builder{app: &app, shared: shared}, nil
}

// Format implements fmt.Formatter: it prints where the builder is for, without the password in the broker's address.
func (b Builder) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, b.shared.String()) }

// SubscriberConfig is the app's configuration for amqp.NewSubscriber, with a topology builder that declares the retry
// topology beside the app's own at every Subscribe and reconnect, and with a marshaler around the app's that reads what
// comes back from a tier. Every call returns a copy of its own. Give every handler of that subscriber the retry middleware:
// without it a message that the app's marshaler cannot read reaches the handler as it is, marked by
// middleware.UnmarshalErrorKey, and middleware.PropertiesKey stays among its metadata.
func (b *Builder) SubscriberConfig() amqp.Config {
	config := clone(*b.app)
	config.TopologyBuilder = topologyBuilder{app: b.app.TopologyBuilder, shared: b.shared}
	config.Marshaler = b.shared.Marshaler()
	return config
}

// DeadLetterSubscriberConfig is a configuration for amqp.NewSubscriber that reads dead letters: to subscribe to the topic of
// the work queue is to read its dead-letter queue. Every message has a failure record, also one that the broker itself
// dead-lettered: its dead reason is then the broker's (delivery_limit, rejected, expired, maxlen). Acknowledging a message
// removes the dead letter. Do not add the retry middleware to its handlers.
func (b *Builder) DeadLetterSubscriberConfig() amqp.Config {
	config := clone(*b.app)
	config.Queue.GenerateName = b.shared.DeadLetterQueueOf
	config.Exchange.GenerateName = func(string) string { return "" }
	config.Consume.Exclusive = false
	config.TopologyBuilder = deadLetterTopology{b.shared}
	config.Marshaler = b.shared.DeadLetterMarshaler()
	return config
}

// NewPublisher connects the publisher of failures: it returns nil only for what the broker has routed and confirmed, and
// declares a tier again that is gone. Close it after the router has closed. A nil logger logs nothing.
func (b *Builder) NewPublisher(logger watermill.LoggerAdapter) (*publisher.Publisher, error) {
	return b.shared.NewPublisher(logger)
}

// TieredRetryConfig is the middleware's configuration: the schedule, and topics that the failure publisher understands as
// routing keys. Set hooks and limits on what it returns.
func (b *Builder) TieredRetryConfig(failures message.Publisher) middleware.TieredRetryConfig {
	return b.shared.TieredRetryConfig(failures)
}

// Topology is what a topic's work queue needs on the broker. The app's own exchange and its binding are not part of it.
func (b *Builder) Topology(topic string) Topology { return b.shared.Topology(topic) }
