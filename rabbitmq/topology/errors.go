package topology

import (
	"errors"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
)

var (
	// ErrUnprotectedQuorum is returned when a work queue is a quorum queue without a dead-letter exchange on RabbitMQ
	// 4.0 to 4.2: such a broker drops a message that was requeued 20 times.
	ErrUnprotectedQuorum = errors.New("unprotected quorum queue")

	// ErrTransientQueue is returned when a work queue is not durable on RabbitMQ 4.3 or later, which refuses such
	// queues unless they are exclusive.
	ErrTransientQueue = errors.New("transient queue")
)

// ArgumentConflictError is returned, as a pointer, when an exchange or queue exists with another argument than the one
// asked for. The arguments of an existing object cannot be changed. It unwraps to Cause. Its fields:
//
//	Object   string         // the queue or exchange
//	Argument string         // an optional argument such as x-message-ttl; also durable and type
//	Want     string         // the value asked for, "none" without one
//	Have     string         // the value of the existing object, "none" without one
//	Advice   string         // what to do; empty: delete the object when it is empty, or configure its value
//	Cause    *amqp091.Error // the broker's answer, 406 PRECONDITION_FAILED; may be nil
type ArgumentConflictError = refusal.ArgumentConflictError
