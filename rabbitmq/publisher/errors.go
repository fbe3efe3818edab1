package publisher

import (
	"errors"
	"fmt"
)

var (
	// ErrUnroutable: no queue took the message, even after Config.Redeclare where it is set, or the exchange is not
	// there. The message has not been delivered. Cause holds the broker's words and why the redeclaration failed.
	ErrUnroutable = errors.New("no queue took the message")

	// ErrNacked: the broker refused to take responsibility, as a full queue with x-overflow=reject-publish does. Where
	// the message was routed to several queues, some of them may have it; otherwise it has not been delivered.
	ErrNacked = errors.New("the broker nacked the message")

	// ErrNotConfirmed: no confirm before the deadline, or before the end of the message's context. The message may
	// have been delivered.
	ErrNotConfirmed = errors.New("the broker did not confirm the message")

	// ErrBlocked: the broker has blocked the connection, because of a memory or disk alarm. A publish that finds it
	// so fails at once, and its message has not been delivered. One that was in flight already waits until its
	// deadline; its message may still be delivered when the alarm ends.
	ErrBlocked = errors.New("the broker has blocked the connection")

	// ErrNotConnected: there is no connection, or it was lost while the message was in flight. In the first case the
	// message has not been delivered, in the second it may have been. Errors do not tell the cases apart, so treat
	// the outcome as unknown.
	ErrNotConnected = errors.New("no connection to the broker")

	// ErrStalled: the message was not written to the socket before the deadline, because the peer does not read or
	// because Config.MaxInFlight messages were waiting for their confirms already. It may still be delivered: a part of
	// it may be on its way.
	ErrStalled = errors.New("the message was not written in time")

	// ErrRefused: the message cannot be sent. Either the publisher found out by itself, and Cause names property,
	// value and bound; or the broker closed the channel because of it, and Cause is its *amqp091.Error. The message
	// has not been delivered, and publishing it again unchanged is pointless.
	ErrRefused = errors.New("the message was refused")

	// ErrClosed: the publisher is closed. The message has not been delivered.
	ErrClosed = errors.New("the publisher is closed")
)

// PublishError is the error of one message. errors.Is finds both its kind and its cause.
type PublishError struct {
	Exchange    string
	RoutingKey  string
	MessageUUID string // Watermill's UUID of the message
	Err         error  // one of this package's Err variables
	Cause       error  // what lies behind it: a *amqp091.Error, a context's error, ...; may be nil
}

func (e *PublishError) Error() string {
	text := fmt.Sprintf("publish to exchange %q with routing key %q, message %q: %v",
		e.Exchange, clip(e.RoutingKey), clip(e.MessageUUID), e.Err)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap gives the kind and the cause.
func (e *PublishError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// clip keeps a value that the application chose from filling the log.
func clip(value string) string {
	const most = 256
	if len(value) <= most {
		return value
	}
	return value[:most] + "..."
}
