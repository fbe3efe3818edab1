// Package panics calls the functions of an app, and makes errors of their panics. It has the failures of handlers that
// do what a handler must not do.
package panics

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/tieredretry/watermill-retry/retry"
)

// ErrNilMessage is the failure of a handler that returns a nil message. The router's publishers panic on it, where no
// middleware sees it.
var ErrNilMessage = errors.New("the handler returned a nil message")

// ErrGoexit is the failure of a handler that ended its goroutine with runtime.Goexit. FailNow of testing.T does that.
var ErrGoexit = errors.New("the handler ended its goroutine")

// Call calls a function of the app, or of what the app has given, such as a publisher or an error. All such calls go
// through it, so it is the only place that recovers a panic. No function can stop runtime.Goexit: then
// TieredRetry.exited settles the message.
func Call(f func()) (panicked *retry.PanicError) {
	defer func() {
		if recovered := recover(); recovered != nil {
			panicked = newPanicError(recovered)
		}
	}()
	f()
	return nil
}

// Error calls a function of the app, and returns its panic as an error that begins with a name.
func Error(name string, f func() error) (err error) {
	if panicked := Call(func() { err = f() }); panicked != nil {
		return fmt.Errorf("%s panicked: %v", name, panicked.Value)
	}
	return err
}

// TypeOf returns the type of an error's root, because the types of wrappers say little. The Unwrap of some errors
// panics.
func TypeOf(err error) (name string) {
	name = fmt.Sprintf("%T", err)
	_ = Call(func() {
		for root := err; root != nil; root = errors.Unwrap(root) {
			name = fmt.Sprintf("%T", root)
		}
	})
	return name
}

// newPanicError must be called by the deferred function that recovers the value. Later the stack of the panic is gone.
func newPanicError(value any) *retry.PanicError {
	return &retry.PanicError{Value: value, Stack: debug.Stack(), Place: placeOfPanic()}
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

// PlaceIn finds the place in a text of debug.Stack: a line with the call, then one with a tab, the file and the
// line.
func PlaceIn(stack string) string {
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

// boundary is the frame of Call.
const boundary = "github.com/tieredretry/watermill-retry/internal/panics.Call"
