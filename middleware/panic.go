package middleware

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// ErrGoexit is the failure of a handler that ended its goroutine with runtime.Goexit, as testing.T's FailNow does.
var ErrGoexit = errors.New("the handler ended its goroutine")

// PanicError is the failure of a handler that panicked. Where the value was an error it unwraps to it, so that
// backoff.Permanent and errors.Is see it.
type PanicError struct {
	Value any    // what the handler panicked with
	Stack []byte // the stack of the panic
	where string
}

// Error names the value and the place of the panic; the whole stack is in Stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v%s", e.Value, e.where) }

// Unwrap returns the value where it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// newPanicError must be called in the deferred function that recovered the value, while the stack is still the panic's.
func newPanicError(value any) *PanicError {
	return &PanicError{Value: value, Stack: debug.Stack(), where: placeOfPanic()}
}

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
