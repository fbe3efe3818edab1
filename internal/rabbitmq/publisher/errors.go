package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
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
	// its value and the bound, or is the error of Config.Route, or the error or panic of Config.Marshal. Or the broker closed the
	// channel because of the message, and Cause is its *amqp091.Error. The message has not been delivered. PublishError.Refused
	// reports whether it will be refused again unless it is changed.
	ErrRefused = errors.New("the message was refused")

	// ErrNotDeclared is returned when Config.DeclareExchange failed, panicked or did not return in time. The message has not been
	// delivered. Cause is the error of DeclareExchange, or the reason why Publish does not wait any more.
	ErrNotDeclared = errors.New("the exchange was not declared")

	// ErrClosed is returned when the publisher or its connection is closed. The message has not been delivered.
	ErrClosed = errors.New("the publisher is closed")
)

// PublishError is the error of one message. errors.Is and errors.As find both Err and Cause.
//
// Its methods classify the error. At most one of Refused, Closed, Rejected and Unconfirmed is true. Where none is, the message has
// not been delivered, and a later try can succeed. Callers that do not import this package find a method with errors.As and an
// interface such as interface{ Refused() bool }. The error of several messages has these methods too: Refused, TooLarge and Rejected
// are true if they are true for all messages that failed, Closed and Unconfirmed if they are true for one of them.
type PublishError struct {
	Exchange    string
	RoutingKey  string
	MessageUUID string // Watermill's UUID of the message
	Err         error  // one of this package's Err variables
	Cause       error  // the underlying error, such as a *amqp091.Error or a context's error; may be nil

	unsent bool // no attempt was written to the socket, not even in part
}

// Refused reports whether no further try with this message can help: the error is ErrRefused, and its cause is not temporary. The
// causes that are temporary are: the broker's 403 (the user lacks a permission), 405, 320, 501, 504, 506 and 541, and an error of
// Config.Route or Config.Marshal that is a context's error or has a method Temporary() bool or Timeout() bool that returns true.
func (e *PublishError) Refused() bool {
	return e.Err == ErrRefused && !isTemporary(e.Cause, amqp091.AccessRefused, amqp091.ResourceLocked)
}

// TooLarge reports whether the message is refused because of its size. Refused is true then, too. The message may fit where
// Config.Headroom reserves less.
func (e *PublishError) TooLarge() bool {
	_, tooLarge := e.Cause.(errTooLarge)
	return tooLarge
}

// Closed reports whether the publisher or its connection is closed: the error is ErrClosed. Every further try fails.
func (e *PublishError) Closed() bool { return e.Err == ErrClosed }

// Rejected reports whether this destination refuses the message, so that another one may take it: the error is ErrNacked, or
// ErrUnroutable after the redeclaration, where there is one. It is false where the redeclaration did not end or the connection was lost
// meanwhile: the destination may exist at the next try.
func (e *PublishError) Rejected() bool {
	switch e.Err {
	case ErrNacked:
		return true
	case ErrUnroutable:
		failed, redeclared := e.Cause.(*redeclareError)
		return !redeclared || !isTemporary(failed.err)
	}
	return false
}

// Unconfirmed reports whether the message may have been delivered, so that a further try may deliver it twice: it was written, at
// least in part, and the error is ErrNotConfirmed, ErrStalled, ErrNotConnected or ErrBlocked.
func (e *PublishError) Unconfirmed() bool {
	switch e.Err {
	case ErrNotConfirmed, ErrStalled, ErrNotConnected, ErrBlocked:
		return !e.unsent
	}
	return false
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

// A joinedError is the error of a call of Publish of which several messages failed.
type joinedError struct {
	failures []error
	joined   error
}

// joinFailures returns nil for no failure, and a single one as it is.
func joinFailures(failures []error) error {
	switch len(failures) {
	case 0:
		return nil
	case 1:
		return failures[0]
	}
	return &joinedError{failures, errors.Join(failures...)}
}

func (e *joinedError) Error() string   { return e.joined.Error() }
func (e *joinedError) Unwrap() []error { return e.failures }

// Refused reports whether no further try with any of the messages can help.
func (e *joinedError) Refused() bool { return e.all((*PublishError).Refused) }

// Closed reports whether a message failed because the publisher is closed: further tries of all of them fail.
func (e *joinedError) Closed() bool { return e.any((*PublishError).Closed) }

// Rejected reports whether the destination refuses all of the messages.
func (e *joinedError) Rejected() bool { return e.all((*PublishError).Rejected) }

// Unconfirmed reports whether one of the messages may have been delivered.
func (e *joinedError) Unconfirmed() bool { return e.any((*PublishError).Unconfirmed) }

// TooLarge reports whether all of the messages are too large.
func (e *joinedError) TooLarge() bool {
	return e.all((*PublishError).TooLarge)
}

func (e *joinedError) any(is func(*PublishError) bool) bool {
	return slices.ContainsFunc(e.failures, func(err error) bool {
		failure, ok := err.(*PublishError)
		return ok && is(failure)
	})
}

func (e *joinedError) all(is func(*PublishError) bool) bool {
	return !e.any(func(failure *PublishError) bool { return !is(failure) })
}

// A redeclareError is the cause of ErrUnroutable where Config.Redeclare or Config.DeclareExchange failed.
type redeclareError struct{ unroutable, err error }

func (e *redeclareError) Error() string {
	return fmt.Sprintf("%v; redeclaring did not help: %v", e.unroutable, e.err)
}

func (e *redeclareError) Unwrap() []error { return []error{e.unroutable, e.err} }

// timeoutError is the end of a wait of this package.
type timeoutError string

func (e timeoutError) Error() string { return string(e) }

// Timeout marks the error as net.Error does.
func (e timeoutError) Timeout() bool { return true }

// isTemporary reports whether the cause of an error can be gone at the next try, although the message is the same. The codes are those
// of the broker that count as temporary, in addition to those of a lost channel or connection and of the broker's own faults. An error
// of the app's may panic in its methods: it is not temporary.
func isTemporary(err error, codes ...int) (temporary bool) {
	defer func() {
		if recover() != nil {
			temporary = false
		}
	}()
	var broker *amqp091.Error
	if errors.As(err, &broker) {
		switch broker.Code {
		case amqp091.ConnectionForced, amqp091.FrameError, amqp091.ChannelError, amqp091.ResourceError, amqp091.InternalError:
			return true
		}
		return slices.Contains(codes, broker.Code)
	}
	var marked interface{ Temporary() bool }
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.Canceled) || errors.Is(err, ErrNotConnected) || errors.Is(err, ErrBlocked) ||
		errors.Is(err, wire.ErrLost) || errors.As(err, &marked) && marked.Temporary() || errors.As(err, &timeout) && timeout.Timeout()
}

// clip shortens a value of the application for errors and logs.
func clip(value string) string {
	const most = 256
	if len(value) <= most {
		return value
	}
	return value[:most] + "..."
}
