package config

import "github.com/tieredretry/watermill-retry/rabbitmq/topology"

// What the broker needs is the same for every major of watermill-amqp: package topology has it, and here are its names.
type (
	// Topology is what one work queue needs on the broker, as plain data: declared, verified, printed and exported.
	Topology = topology.Topology
	// Exchange is an exchange of the topology.
	Exchange = topology.Exchange
	// Queue is a queue of the topology.
	Queue = topology.Queue
	// Binding binds a queue to an exchange.
	Binding = topology.Binding
	// QueueType is the type of tier and dead-letter queues.
	QueueType = topology.QueueType
	// WorkQueueMode says what the builder does about the app's own queues.
	WorkQueueMode = topology.WorkQueueMode
	// ArgumentConflictError says that an exchange or queue exists with another argument.
	ArgumentConflictError = topology.ArgumentConflictError
)

const (
	// Quorum, the default, is replicated and hands expired messages on at least once.
	Quorum = topology.Quorum
	// Classic voids the promise that no message is lost: a classic tier hands expired messages on without a confirm, so one
	// is lost when the broker dies at the wrong moment.
	Classic = topology.Classic

	// Protect, the default, declares a work queue that does not exist as a quorum queue which dead-letters, and does not drop,
	// what the broker itself gives up on: after 20 deliveries that were not acknowledged, or by the app's own arguments. A
	// queue that exists with other arguments is left as it is, with one warning.
	Protect = topology.Protect
	// Leave declares the work queue as the app's own configuration says.
	Leave = topology.Leave
)

var (
	// ErrUnprotectedQuorum says that a work queue is a quorum queue without a dead-letter exchange on RabbitMQ 4.0 to 4.2,
	// which drops a message that was requeued 20 times.
	ErrUnprotectedQuorum = topology.ErrUnprotectedQuorum
	// ErrTransientQueue says that a work queue is not durable on RabbitMQ 4.3 or later, which refuses such queues unless they
	// are exclusive.
	ErrTransientQueue = topology.ErrTransientQueue
)
