package middleware

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	recoverer "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// ErrGoexit is the failure of a handler that ended its goroutine with runtime.Goexit. FailNow of testing.T does that.
var ErrGoexit = errors.New("the handler ended its goroutine")

// PanicError is the failure of a handler that panicked, also where Watermill's Recoverer is inside. A handler can
// panic with a backoff.Permanent or backoff.RetryAfter error: PanicError unwraps to it.
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

// call calls a function of the app, or of what the app has given, such as a publisher or an error. All such calls go
// through it, so it is the only place that recovers a panic. No function can stop runtime.Goexit: then
// TieredRetry.exited settles the message.
func call(f func()) (panicked *PanicError) {
	defer func() {
		if recovered := recover(); recovered != nil {
			panicked = newPanicError(recovered)
		}
	}()
	f()
	return nil
}

// newPanicError must be called by the deferred function that recovers the value. Later the stack of the panic is gone.
func newPanicError(value any) *PanicError {
	return &PanicError{Value: value, Stack: debug.Stack(), place: placeOfPanic()}
}

// recoveredPanic is the failure of a handler whose panic Watermill's Recoverer has made an error, inside of the retry
// middleware.
type recoveredPanic struct {
	*PanicError       // as without the Recoverer
	returned    error // what the middlewares inside have returned
}

// Unwrap has both: a middleware may have marked what it returned as permanent.
func (e recoveredPanic) Unwrap() []error { return []error{e.PanicError, e.returned} }

// panicOf returns the panic that an error reports, and the error as it is without a Recoverer. It returns nil where
// it reports none.
func panicOf(err error) (panicked *PanicError, as error) {
	var recovered recoverer.RecoveredPanicError
	is := false
	if call(func() { is = !errors.As(err, &panicked) && errors.As(err, &recovered) }) != nil { // a method of the error
		return nil, err
	}
	if !is {
		return panicked, err
	}
	panicked = &PanicError{Value: recovered.V, Stack: []byte(recovered.Stacktrace), place: placeInStack(recovered.Stacktrace)}
	return panicked, recoveredPanic{panicked, err}
}

// panicPlace finds the function that panicked first, with its file and line, among the frames of a stack. A deferred
// function may have recovered the value and panicked again with it, as OpenTelemetry's span does: the oldest panic is
// the farthest on the stack.
type panicPlace struct {
	place    string
	panicked bool // the frame before is a panic
}

// add takes the next frame. It returns false where what follows has called the middleware, or is a panic that it
// settles.
func (p *panicPlace) add(function, file string, line int) bool {
	switch {
	case function == boundary:
		return false
	case function == "runtime.gopanic" || function == "panic": // the second is its name in the text of a stack
		p.panicked = true
	case p.panicked && !strings.HasPrefix(function, "runtime."):
		p.place, p.panicked = fmt.Sprintf(" (%s, %s:%d)", function, filepath.Base(file), line), false
	}
	return true
}

// placeOfPanic finds the place on the stack of this goroutine.
func placeOfPanic() string {
	var found panicPlace
	pcs := make([]uintptr, 64)
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			if !found.add(frame.Function, frame.File, frame.Line) {
				return found.place
			}
		}
		if n < len(pcs) {
			return found.place
		}
	}
}

// placeInStack finds the place in a text of debug.Stack: a line with the call, then one with a tab, the file and the
// line.
func placeInStack(stack string) string {
	var found panicPlace
	function := ""
	for text := range strings.Lines(stack) {
		text = strings.TrimSpace(text)
		if at := strings.LastIndex(text, ".go:"); at >= 0 && function != "" {
			number, _, _ := strings.Cut(text[at+len(".go:"):], " ")
			line, _ := strconv.Atoi(number)
			if !found.add(function, text[:at+len(".go")], line) {
				break
			}
			function = ""
		} else if at := strings.LastIndex(text, "("); at > 0 {
			function = text[:at]
		}
	}
	return found.place
}

// boundary is the frame of call.
const boundary = "github.com/tieredretry/watermill-retry/middleware.call"
