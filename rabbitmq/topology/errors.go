package topology

import (
	"errors"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
)

var (
	// ErrUnprotectedQuorum is returned when a work queue is a quorum queue without a dead-letter exchange on RabbitMQ 4.0 to
	// 4.2: such a broker drops a message that was requeued 20 times.
	ErrUnprotectedQuorum = errors.New("unprotected quorum queue")

	// ErrTransientQueue is returned when a work queue is not durable on RabbitMQ 4.3 or later, which refuses such queues unless
	// they are exclusive.
	ErrTransientQueue = errors.New("transient queue")
)

// ArgumentConflictError is returned when an exchange or queue exists with another argument. Its fields are Object (the exchange
// or queue), Argument, Want and Have (both values, "none" without one) and Cause (the broker's 406, an *amqp091.Error).
type ArgumentConflictError = refusal.ArgumentConflictError
