package publisher

import (
	"errors"
	"fmt"
)

var (
	// ErrUnroutable is returned when the broker routed the message to no queue, even after Config.Redeclare where that is set, or
	// when the exchange does not exist, even after Config.DeclareExchange where that is set. The message has not been delivered.
	// Cause holds the broker's text and the error of the redeclaration, if there was one.
	ErrUnroutable = errors.New("the message was not routed to any queue")

	// ErrNacked is returned when the broker nacks the message, for example because a queue with x-overflow=reject-publish is
	// full. If the message was routed to one queue, it has not been delivered. If it was routed to several, some of them may
	// have it.
	ErrNacked = errors.New("the broker nacked the message")

	// ErrNotConfirmed is returned when there is no confirm before ConnectionConfig.ConfirmTimeout or before the end of the message's
	// context. The message may have been delivered.
	ErrNotConfirmed = errors.New("the broker did not confirm the message")

	// ErrBlocked is returned when the broker has blocked the connection, because of a memory or disk alarm. If the connection
	// is blocked when Publish is called, Publish returns at once and the message has not been delivered. A message that is
	// already in flight waits until its deadline, and may still be delivered when the alarm ends.
	ErrBlocked = errors.New("the broker has blocked the connection")

	// ErrNotConnected is returned when there is no connection, or when the connection is lost while the message is in flight.
	// In the first case the message has not been delivered, in the second it may have been. The error is the same in both
	// cases, so the outcome has to be treated as unknown.
	ErrNotConnected = errors.New("no connection to the broker")

	// ErrStalled is returned when the message is not written to the socket before the deadline: the broker does not read, or
	// ConnectionConfig.MaxInFlight messages are waiting for their confirms. The message may still be delivered, because a part of it may
	// have been written.
	ErrStalled = errors.New("the message was not written in time")

	// ErrRefused is returned when the message cannot be sent. Either the publisher refused it, and Cause names the property,
	// its value and the bound, or is the error of Config.Route or Config.Marshal. Or the broker closed the channel because of the
	// message, and Cause is its *amqp091.Error. The message has not been delivered, and it will be refused again unless it is
	// changed.
	ErrRefused = errors.New("the message was refused")

	// ErrNotDeclared is returned when Config.DeclareExchange failed, panicked or did not return in time. The message has not been
	// delivered. Cause is the error of DeclareExchange, or the reason why Publish does not wait any more.
	ErrNotDeclared = errors.New("the exchange was not declared")

	// ErrClosed is returned when the publisher or its connection is closed. The message has not been delivered.
	ErrClosed = errors.New("the publisher is closed")
)

// PublishError is the error of one message. errors.Is and errors.As find both Err and Cause.
type PublishError struct {
	Exchange    string
	RoutingKey  string
	MessageUUID string // Watermill's UUID of the message
	Err         error  // one of this package's Err variables
	Cause       error  // the underlying error, such as a *amqp091.Error or a context's error; may be nil
}

// Error includes at most 256 bytes of each of exchange, routing key and UUID.
func (e *PublishError) Error() string {
	text := fmt.Sprintf("publish to exchange %q with routing key %q, message %q: %v",
		clip(e.Exchange), clip(e.RoutingKey), clip(e.MessageUUID), e.Err)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns Err, and Cause unless that is nil.
func (e *PublishError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// clip shortens a value of the application for errors and logs.
func clip(value string) string {
	const most = 256
	if len(value) <= most {
		return value
	}
	return value[:most] + "..."
}
