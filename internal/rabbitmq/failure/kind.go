package failure

import (
	"context"
	"errors"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// As says to the retry middleware what a further try can do, whichever backend it publishes with.
func (e *Error) As(target any) bool {
	failed, ok := target.(**unpublished.Error)
	if ok {
		*failed = &unpublished.Error{Kind: kindOf(e), Err: e, Lost: lostOf(e)}
	}
	return ok
}

// kindOf classifies an error.
//
// Closed is retry.ErrClosed. Refused is ErrRefused with a cause that is not temporary, and TooLarge the same because of
// the size: the message may fit where the broker adds less to it. The causes that are temporary are: the broker's 403
// (the user lacks a permission), 405, 320, 501, 504, 506 and 541, and an error of the app's marshaler that is a
// context's error or has a method Temporary() bool or Timeout() bool that returns true.
//
// Rejected is ErrNacked, or ErrUnroutable, but not where a redeclaration did not end or the connection was lost
// meanwhile: the destination may exist at the next try. Unconfirmed is ErrNotConfirmed, ErrNotConnected or ErrBlocked
// of a message that was written, at least in part. The others are Temporary.
func kindOf(e *Error) unpublished.Kind {
	switch e.Err {
	case retry.ErrClosed:
		return unpublished.Closed
	case publish.ErrNacked:
		return unpublished.Rejected
	case publish.ErrUnroutable:
		if e.Redeclare == nil || !isTemporary(e.Redeclare) {
			return unpublished.Rejected
		}
	case publish.ErrRefused:
		if _, tooLarge := e.Cause.(*unpublished.TooLargeError); tooLarge {
			return unpublished.TooLarge
		}
		if !isTemporary(e.Cause, amqp091.AccessRefused, amqp091.ResourceLocked) {
			return unpublished.Refused
		}
	case publish.ErrNotConfirmed, publish.ErrNotConnected, publish.ErrBlocked:
		if !e.Unsent {
			return unpublished.Unconfirmed
		}
	}
	return unpublished.Temporary
}

// lostOf returns when the confirm of a message that was written cannot come any more.
func lostOf(e *Error) unpublished.Lost {
	if e.Err == publish.ErrNotConnected {
		return unpublished.ConnectionLost
	}
	if awaited, found := e.Cause.(*unpublished.AwaitedError); found {
		return awaited.Lost
	}
	return unpublished.Lost{}
}

// isTemporary reports whether the cause of an error can be gone at the next try, although the message is the same. The
// codes are those of the broker that count as temporary, in addition to those of a lost channel or connection and of
// the broker's own faults. An error of the app's may panic in its methods: it is not temporary.
func isTemporary(err error, codes ...int) (temporary bool) {
	panicked := panics.Call(func() { temporary = asksTemporary(err, codes) })
	return temporary && panicked == nil
}

func asksTemporary(err error, codes []int) bool {
	var broker *amqp091.Error
	if errors.As(err, &broker) {
		switch broker.Code {
		case amqp091.ConnectionForced, amqp091.FrameError, amqp091.ChannelError, amqp091.ResourceError,
			amqp091.InternalError:
			return true
		}
		return slices.Contains(codes, broker.Code)
	}
	var marked interface{ Temporary() bool }
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.Canceled) ||
		errors.Is(err, publish.ErrNotConnected) || errors.Is(err, publish.ErrBlocked) ||
		errors.As(err, &marked) && marked.Temporary() || errors.As(err, &timeout) && timeout.Timeout()
}
