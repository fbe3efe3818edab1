// Package queuearg names the optional arguments of queues and exchanges that the retry topology uses. The RabbitMQ
// manual defines them under "Optional Arguments".
package queuearg

const (
	QueueType            = "x-queue-type"
	MessageTTL           = "x-message-ttl"
	DeliveryLimit        = "x-delivery-limit"
	DeadLetterExchange   = "x-dead-letter-exchange"
	DeadLetterRoutingKey = "x-dead-letter-routing-key"
	DeadLetterStrategy   = "x-dead-letter-strategy"
	Overflow             = "x-overflow"
	MaxLength            = "x-max-length"
	MaxLengthBytes       = "x-max-length-bytes"
	AlternateExchange    = "alternate-exchange" // an argument of an exchange
	MaxPriority          = "x-max-priority"
	QueueMode            = "x-queue-mode"
	QueueVersion         = "x-queue-version"
	QueueMasterLocator   = "x-queue-master-locator"
	QueueLeaderLocator   = "x-queue-leader-locator"
	Expires              = "x-expires"
	SingleActiveConsumer = "x-single-active-consumer"
	ConsumerTimeout      = "x-consumer-timeout" // an argument of a consumer, too
	MaxInMemoryLength    = "x-max-in-memory-length"
	MaxInMemoryBytes     = "x-max-in-memory-bytes"

	QuorumInitialGroupSize = "x-quorum-initial-group-size"
	QuorumTargetGroupSize  = "x-quorum-target-group-size"
)

// Values of DeadLetterStrategy, Overflow and QueueLeaderLocator.
const (
	AtLeastOnce   = "at-least-once"
	RejectPublish = "reject-publish"
	DropHead      = "drop-head"
	Balanced      = "balanced"
	ClientLocal   = "client-local"
)

// WorkDeliveryLimit is how many times a protected work queue redelivers a message before it dead-letters it. It is the
// default of RabbitMQ 4.0, which drops the message if the queue has no dead-letter exchange.
const WorkDeliveryLimit = 20
