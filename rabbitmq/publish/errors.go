// Package publish defines the errors of a publish to RabbitMQ, which every publisher of this library returns and an app
// compares.
package publish

import (
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrUnroutable is returned when the broker routed the message to no queue, or when the exchange does not exist,
	// also after the publisher has declared what it may declare. The message has not been delivered.
	ErrUnroutable = errors.New("the message was not routed to any queue")

	// ErrNacked is returned when the broker nacks the message, for example because a queue with
	// x-overflow=reject-publish is full. If the message was routed to one queue, it has not been delivered. If it was
	// routed to several, some of them may have it.
	ErrNacked = errors.New("the broker nacked the message")

	// ErrNotConfirmed is returned when there is no confirm within 30 s, or before the end of the message's context. The
	// message may have been delivered.
	ErrNotConfirmed = errors.New("the broker did not confirm the message")

	// ErrBlocked is returned when the broker has blocked the connection, because of a memory or disk alarm. If the
	// connection is blocked when Publish is called, Publish returns at once and the message has not been delivered. A
	// message that is already in flight waits until its deadline, and may still be delivered when the alarm ends.
	ErrBlocked = errors.New("the broker has blocked the connection")

	// ErrNotConnected is returned when there is no connection, or when the connection is lost while the message is in
	// flight. In the first case the message has not been delivered, in the second it may have been: see Error.Unsent.
	ErrNotConnected = errors.New("no connection to the broker")

	// ErrStalled is returned when the message is not written to the socket before the deadline: the broker does not
	// read, or too many messages wait for their confirms. The message may still be delivered, because a part of it may
	// have been written.
	ErrStalled = errors.New("the message was not written in time")

	// ErrRefused is returned when the message cannot be sent. Either the publisher refused it, and Cause names the
	// property, its value and the bound, or is the error or panic of the app's marshaler. Or the broker closed the
	// channel because of the message, and Cause is its *amqp091.Error. The message has not been delivered.
	ErrRefused = errors.New("the message was refused")

	// ErrNotDeclared is returned when the exchange could not be declared, or not in time. The message has not been
	// delivered.
	ErrNotDeclared = errors.New("the exchange was not declared")
)

// Error is the error of one message. errors.Is and errors.As find Err, Cause and Redeclare.
type Error struct {
	Exchange    string
	RoutingKey  string
	MessageUUID string // Watermill's UUID of the message
	Err         error  // one of this package's Err variables, or retry.ErrClosed
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
