package middleware

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
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

// placeOfPanic returns the function that panicked, with its file and line.
func placeOfPanic() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicked := false
	for {
		frame, more := frames.Next()
		inRuntime := strings.HasPrefix(frame.Function, "runtime.")
		if panicked && !inRuntime {
			return fmt.Sprintf(" (%s, %s:%d)", frame.Function, filepath.Base(frame.File), frame.Line)
		}
		panicked = panicked || frame.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}
