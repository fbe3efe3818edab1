package retry

import (
	"errors"
	"fmt"
)

// ErrNotPublished is the failure of a message whose handler has succeeded, and which was nacked nevertheless: the
// router could not publish what the handler had produced, or a middleware outside of the retry middleware has failed.
// The log of the router has the error. A Connection retries such a message: observers get its success first, and then
// the retry. With AddHandler of the Connection the failure wraps the publisher's error, and the record has its text. A
// Breaker counts one failure.
var ErrNotPublished = errors.New("the router nacked the message after its handler had succeeded: it could not " +
	"publish what the handler " +
	"produced, or a middleware outside failed")

// ErrClosed is returned by the methods of a Connection to RabbitMQ that is closed, and by its subscribers and its
// publisher. What the publisher has not published has not been delivered. On other backends Subscriber returns it.
var ErrClosed = errors.New("the connection is closed: make a new one")

// PanicError is the failure of a handler that panicked, also where Watermill's Recoverer is inside. A handler can
// panic with a backoff.Permanent or backoff.RetryAfter error: PanicError unwraps to it.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // the stack of the panicking goroutine, as debug.Stack prints it
	Place string // function, file and line of the panic; empty if they are not known
}

// Error returns the value of the panic and the function, file and line that panicked.
func (e *PanicError) Error() string {
	if e.Place == "" {
		return fmt.Sprintf("panic: %v", e.Value)
	}
	return fmt.Sprintf("panic: %v (%s)", e.Value, e.Place)
}

// Unwrap returns Value if it is an error, else nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
