package refusal

import (
	"cmp"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// ArgumentConflictError is returned when an exchange or queue exists with another argument than the one asked for. The
// broker answers 406 PRECONDITION_FAILED and closes the channel. The arguments of an existing object cannot be changed.
type ArgumentConflictError struct {
	Object   string         // the queue or exchange
	Argument string         // an optional argument such as x-message-ttl; also durable and type
	Want     string         // the value asked for, "none" without one
	Have     string         // the value of the existing object, "none" without one
	Advice   string         // what to do; empty for the usual
	Cause    *amqp091.Error // the broker's answer; may be nil
}

func (e *ArgumentConflictError) Error() string {
	advice := cmp.Or(e.Advice, "delete it once it is empty, or configure the value that it has")
	text := fmt.Sprintf("%q exists with argument %s=%s, wanted is %s: %s", e.Object, e.Argument, e.Have, e.Want, advice)
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
