package topology

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
)

// ErrUnprotectedQuorum says that a work queue is a quorum queue without a dead-letter exchange on RabbitMQ 4.0 to 4.2, which
// drops a message that was requeued 20 times.
var ErrUnprotectedQuorum = errors.New("unprotected quorum queue")

// ErrTransientQueue says that a work queue is not durable on RabbitMQ 4.3 or later, which refuses such queues unless they are
// exclusive.
var ErrTransientQueue = errors.New("transient queue")

// ArgumentConflictError says that an exchange or queue exists with another argument. The broker answers 406
// PRECONDITION_FAILED; arguments of an existing object cannot be changed.
type ArgumentConflictError struct {
	Object   string // the queue or exchange
	Argument string // x-message-ttl and its like; durable, type
	Want     string // the value asked for, "none" where there is none
	Have     string // the value it has
	Cause    *amqp091.Error
}

func (e *ArgumentConflictError) Error() string {
	text := fmt.Sprintf("%q exists with argument %s=%s, wanted is %s: delete it once it is empty, or ask for what it has",
		e.Object, e.Argument, e.Have, e.Want)
	if e.Cause == nil {
		return text
	}
	return text + ": " + e.Cause.Error()
}

func (e *ArgumentConflictError) Unwrap() error {
	if e.Cause == nil {
		return nil
	}
	return e.Cause
}

// explain says what the broker refused and what to do about it.
func explain(what, name string, err error) error {
	err = refusal.Explain(what, name, err)
	if conflict, ok := err.(*refusal.Conflict); ok {
		return (*ArgumentConflictError)(conflict)
	}
	return err
}
