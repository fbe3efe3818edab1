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
	"github.com/tieredretry/watermill-retry/retry"
)

// call calls a function of the app, or of what the app has given, such as a publisher or an error. All such calls go
// through it, so it is the only place that recovers a panic. No function can stop runtime.Goexit: then
// TieredRetry.exited settles the message.
func call(f func()) (panicked *retry.PanicError) {
	defer func() {
		if recovered := recover(); recovered != nil {
			panicked = newPanicError(recovered)
		}
	}()
	f()
	return nil
}

// newPanicError must be called by the deferred function that recovers the value. Later the stack of the panic is gone.
func newPanicError(value any) *retry.PanicError {
	return &retry.PanicError{Value: value, Stack: debug.Stack(), Place: placeOfPanic()}
}

// recoveredPanic is the failure of a handler whose panic Watermill's Recoverer has made an error, inside of the retry
// middleware.
type recoveredPanic struct {
	*retry.PanicError       // as without the Recoverer
	returned          error // what the middlewares inside have returned
}

// Unwrap has both: a middleware may have marked what it returned as permanent.
func (e recoveredPanic) Unwrap() []error { return []error{e.PanicError, e.returned} }

// panicOf returns the panic that an error reports, and the error as it is without a Recoverer. It returns nil where
// it reports none.
func panicOf(err error) (panicked *retry.PanicError, as error) {
	var recovered recoverer.RecoveredPanicError
	is := false
	if call(func() { is = !errors.As(err, &panicked) && errors.As(err, &recovered) }) != nil { // a method of the error
		return nil, err
	}
	if !is {
		return panicked, err
	}
	panicked = &retry.PanicError{Value: recovered.V, Stack: []byte(recovered.Stacktrace),
		Place: placeInStack(recovered.Stacktrace)}
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
		p.place, p.panicked = fmt.Sprintf("%s, %s:%d", function, filepath.Base(file), line), false
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
