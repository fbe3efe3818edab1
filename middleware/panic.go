package middleware

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// ErrGoexit is the failure of a handler that ended its goroutine with runtime.Goexit. FailNow of testing.T does that.
var ErrGoexit = errors.New("the handler ended its goroutine")

// PanicError is the failure of a handler that panicked. A handler can panic with a backoff.Permanent or backoff.RetryAfter error:
// PanicError unwraps to it.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // the stack of the panicking goroutine, as debug.Stack prints it
	place string // function, file and line; empty if they are not known
}

// Error returns the value of the panic and the function, file and line that panicked.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v%s", e.Value, e.place) }

// Unwrap returns Value if it is an error, else nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// newPanicError must be called by the deferred function that recovers the value. Later the stack of the panic is gone.
func newPanicError(value any) *PanicError {
	return &PanicError{Value: value, Stack: debug.Stack(), place: placeOfPanic()}
}

// placeOfPanic returns the function that panicked first, with its file and line. A deferred function may have recovered the value
// and panicked again with it, as OpenTelemetry's span does: the oldest panic is the farthest on the stack.
func placeOfPanic() (place string) {
	pcs, panicked := make([]uintptr, 64), false
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			switch {
			case slices.Contains(ownFrames, frame.Function):
				return place // what is farther has called the middleware, or is a panic that it settles
			case frame.Function == "runtime.gopanic":
				panicked = true
			case panicked && !strings.HasPrefix(frame.Function, "runtime."):
				place, panicked = fmt.Sprintf(" (%s, %s:%d)", frame.Function, filepath.Base(frame.File), frame.Line), false
			}
		}
		if n < len(pcs) {
			return place
		}
	}
}

// ownFrames call the handler, and the functions of the app and of the publisher.
var ownFrames = []string{ownMethod + "handle", ownMethod + "arrive", ownMethod + "fail", ownMethod + "succeed"}

const ownMethod = "github.com/tieredretry/watermill-retry/middleware.(*TieredRetry)."
