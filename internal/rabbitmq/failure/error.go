// Package failure has the error of a message that could not be published to RabbitMQ.
package failure

import (
	"fmt"
	"slices"
)

// Error is the error of one message. errors.Is and errors.As find Err, Cause and Redeclare.
type Error struct {
	Exchange    string
	RoutingKey  string
	MessageUUID string // Watermill's UUID of the message
	Err         error  // one of the variables of package publish, or retry.ErrClosed
	Cause       error  // the underlying error, such as a *amqp091.Error or a context's error; may be nil
	Redeclare   error  // why what is missing could not be declared again; nil: it could, or was not tried
	Unsent      bool   // no attempt was written to the socket, not even in part
}

// Error includes at most 256 bytes of each of exchange, routing key and UUID.
func (e *Error) Error() string {
	text := fmt.Sprintf("publish to exchange %q with routing key %q, message %q: %v",
		clip(e.Exchange), clip(e.RoutingKey), clip(e.MessageUUID), e.Err)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	if e.Redeclare != nil {
		text += "; redeclaring did not help: " + e.Redeclare.Error()
	}
	return text
}

// Unwrap returns those of Err, Cause and Redeclare that are not nil.
func (e *Error) Unwrap() []error {
	return slices.DeleteFunc([]error{e.Err, e.Cause, e.Redeclare}, func(err error) bool { return err == nil })
}

func clip(value string) string {
	const most = 256
	if len(value) <= most {
		return value
	}
	return value[:most] + "..."
}
