package config

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/publisher"
)

// QueueType is the type of tier and dead-letter queues.
type QueueType string

const (
	// Quorum, the default, is replicated and hands expired messages on at least once.
	Quorum QueueType = "quorum"
	// Classic voids the promise that no message is lost: a classic tier hands expired messages on without a confirm, so one
	// is lost when the broker dies at the wrong moment.
	Classic QueueType = "classic"
)

const defaultPrefix = "retry"

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

	// WorkQueue says what to do about the app's own queues. The default is Protect.
	WorkQueue WorkQueue

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

func (c *BuilderConfig) setDefaults() {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.QueueType == "" {
		c.QueueType = Quorum
	}
	if c.WorkQueue == "" {
		c.WorkQueue = Protect
	}
	if c.AMQP.TopologyBuilder == nil {
		c.AMQP.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
}

// Validate reports all faults of the configuration, joined. It does not ask the broker.
func (c BuilderConfig) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if err := validateURI(c.AMQP.Connection.AmqpURI); err != nil {
		faults = append(faults, err)
	} else if err := c.AMQP.ValidateSubscriber(); err != nil {
		fault("AMQP: %w", err)
	}
	if err := c.Schedule.Validate(); err != nil {
		fault("Schedule: %w", err)
	}
	if err := names(c.Prefix).validate(); err != nil {
		faults = append(faults, err)
	}
	if c.QueueType != Quorum && c.QueueType != Classic {
		fault("QueueType is %q: it must be %q or %q", c.QueueType, Quorum, Classic)
	}
	if c.WorkQueue != Protect && c.WorkQueue != Leave {
		fault("WorkQueue is %q: it must be %q or %q", c.WorkQueue, Protect, Leave)
	}
	faults = append(faults, validateQueueConfig(c.AMQP, c.WorkQueue))
	return errors.Join(faults...)
}

// validateQueueConfig refuses what cannot be retried, or would lose messages.
func validateQueueConfig(c amqp.Config, mode WorkQueue) error {
	var faults []error
	refuse := func(field, why string) { faults = append(faults, fmt.Errorf("AMQP.%s: %s", field, why)) }

	if c.Consume.NoRequeueOnNack {
		refuse("Consume.NoRequeueOnNack is true", "a shutdown nacks the message in flight, which is then dropped; the middleware nacks only what must come back")
	}
	if c.Publish.Transactional {
		refuse("Publish.Transactional is true", "failures are published with confirms, which a transactional channel cannot have")
	}
	if c.Queue.Exclusive {
		refuse("Queue.Exclusive is true", "the queue is gone with its connection, and what waits on a tier could not come back")
	}
	if c.Queue.AutoDelete {
		refuse("Queue.AutoDelete is true", "the queue is gone with its last consumer, and what waits on a tier could not come back")
	}
	if kind := c.Queue.Arguments[argType]; kind == amqp091.QueueTypeStream {
		refuse("Queue.Arguments[x-queue-type] is stream", "a stream cannot give a message back to be retried")
	}
	if mode == Protect && !c.Queue.Durable {
		refuse("Queue.Durable is false", "a queue that does not survive the broker's restart cannot be protected; set it, or WorkQueue: Leave")
	}
	return errors.Join(faults...)
}

// validateURI leaves the reading to the publisher, which never prints the address: it holds the password.
func validateURI(uri string) error {
	if uri == "" {
		return errors.New("AMQP.Connection.AmqpURI is empty: give the broker's address, amqp://user:password@host:5672/vhost")
	}
	if (publisher.Config{URI: uri}).Validate() != nil {
		return errors.New("AMQP.Connection.AmqpURI cannot be read: it must be like amqp://user:password@host:5672/vhost (or amqps://), " +
			"with reserved characters in user name and password percent-encoded")
	}
	return nil
}

// Builder makes, around the app's own configuration, what its subscriber, its failure publisher and the middleware need. It
// is safe for concurrent use.
type Builder struct {
	app       amqp.Config
	schedule  backoff.Schedule
	tiers     []backoff.Tier
	names     names
	queueType QueueType
	mode      WorkQueue
	verify    bool
	work      *workQueues
}

// NewBuilder checks the configuration, all faults at once. It does not connect.
func NewBuilder(config BuilderConfig) (*Builder, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid BuilderConfig: %w", err)
	}
	config.setDefaults()
	b := &Builder{
		app:       clone(config.AMQP),
		schedule:  append(backoff.Schedule(nil), config.Schedule...),
		tiers:     config.Schedule.Tiers(),
		names:     names(config.Prefix),
		queueType: config.QueueType,
		mode:      config.WorkQueue,
		verify:    config.VerifyOnly,
	}
	b.work = &workQueues{
		dial: b.dial, names: b.names, mode: b.mode, tiers: b.queueType, vhost: vhostOf(b.app.Connection), allowUnprotected: config.AllowUnprotectedQuorum,
		queues: map[string]*workQueue{}, warned: map[string]bool{},
	}
	return b, nil
}

// SubscriberConfig is the app's configuration for amqp.NewSubscriber, with a topology builder that declares the retry
// topology beside the app's own at every Subscribe and reconnect, and with a marshaler around the app's that reads what
// comes back from a tier. Every call returns a copy of its own. Give every handler of that subscriber the retry middleware:
// without it a message that the app's marshaler cannot read reaches the handler as it is, marked by
// middleware.UnmarshalErrorKey, and middleware.PropertiesKey stays among its metadata.
func (b *Builder) SubscriberConfig() amqp.Config {
	config := clone(b.app)
	config.TopologyBuilder = topologyBuilder{b}
	config.Marshaler = b.marshaler()
	return config
}

func (b *Builder) marshaler() marshaler { return marshaler{app: b.app.Marshaler, names: b.names} }

// NewPublisher connects the publisher of failures: it returns nil only for what the broker has routed and confirmed, and
// declares a tier again that is gone. Close it after the router has closed. A nil logger logs nothing.
func (b *Builder) NewPublisher(logger watermill.LoggerAdapter) (*publisher.Publisher, error) {
	connection := clone(b.app).Connection
	config := publisher.Config{
		URI:      connection.AmqpURI,
		AMQP:     connection.AmqpConfig,
		TLS:      connection.TLSConfig,
		Exchange: b.names.retryExchange(),
		Marshal:  b.marshaler().Marshal,
		Shrink:   shrink,
	}
	if !b.verify {
		config.Redeclare = b.redeclare
	}
	return publisher.New(config, logger)
}

// TieredRetryConfig is the middleware's configuration: the schedule, and topics that the failure publisher understands as
// routing keys. Set hooks and limits on what it returns.
func (b *Builder) TieredRetryConfig(failures message.Publisher) middleware.TieredRetryConfig {
	return middleware.TieredRetryConfig{
		Publisher: failures,
		Schedule:  append(backoff.Schedule(nil), b.schedule...),
		GenerateRetryTopic: func(p middleware.RetryTopicParams) (string, error) {
			return retryKey(b.app.Queue.GenerateName(p.Topic), p.Tier), nil
		},
		GenerateDeadLetterTopic: func(p middleware.DeadLetterTopicParams) (string, error) {
			return deadKey(b.app.Queue.GenerateName(p.Topic)), nil
		},
	}
}

// Topology is what a topic's work queue needs on the broker. The app's own exchange and its binding are not part of it.
func (b *Builder) Topology(topic string) Topology {
	return b.topologyOf(b.app.Queue.GenerateName(topic))
}

func (b *Builder) topologyOf(queue string) Topology {
	work := Queue{Name: queue, Durable: b.app.Queue.Durable, Arguments: cloneTable(b.app.Queue.Arguments)}
	if b.mode == Protect {
		work = protect(work, b.names)
	}
	return newTopology(b.names, b.tiers, b.queueType, work)
}

func (b *Builder) redeclare(channel *amqp091.Channel, routingKey string) error {
	queue, ok := queueOfKey(routingKey)
	if !ok {
		return fmt.Errorf("routing key %q names no work queue: it must be <tier>.<queue> or dead.<queue>", routingKey)
	}
	return b.topologyOf(queue).redeclare(channel)
}

// vhostOf is the virtual host that a connection opens: amqp091-go prefers its configuration's.
func vhostOf(connection amqp.ConnectionConfig) string {
	if connection.AmqpConfig != nil && connection.AmqpConfig.Vhost != "" {
		return connection.AmqpConfig.Vhost
	}
	uri, err := amqp091.ParseURI(connection.AmqpURI)
	if err != nil {
		return ""
	}
	return uri.Vhost
}
