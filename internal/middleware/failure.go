package middleware

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	maxReason    = 1024
	maxRedacted  = 64 * 1024 // what RedactReason gets
	maxErrorType = 255
)

// failure is why a message failed, with what may be recorded of it and what it requests.
type failure struct {
	err        error
	reason     string // bounded and redacted
	errorType  string
	unreadable bool          // the app's marshaler could not read the message
	permanent  bool          // backoff.IsPermanent
	requested  time.Duration // requested delay; 0: none
	action     retry.Action  // the action of the rule that matches
	rule       string        // its name
}

// retried reports whether the failure is one that the middleware retries while retries are left.
func (f *failure) retried() bool {
	switch f.action.Outcome {
	case "":
		return !f.permanent && !f.unreadable
	case retry.Retried:
		return true
	default:
		return false
	}
}

// failureOf bounds and redacts the text of an error.
func (t *TieredRetry) failureOf(err error) failure {
	f := failure{err: err, reason: t.reason(err), errorType: errorType(err)}
	_, f.unreadable = err.(errUnmarshal)
	f.permanent, f.requested = requestOf(err)
	return f
}

// requestOf calls the error's own methods. They may panic: such an error requests nothing.
func requestOf(err error) (permanent bool, delay time.Duration) {
	panicked := panics.Call(func() {
		delay, _ = backoff.RetryAfterDelay(err)
		permanent = backoff.IsPermanent(err)
	})
	if panicked != nil {
		return false, 0
	}
	return permanent, delay
}

// reason returns the text of an error as it may be recorded and logged.
func (t *TieredRetry) reason(err error) (reason string) {
	if t.config.RedactReason == nil {
		return errorText(err, maxReason)
	}
	text := errorText(err, maxRedacted)
	_ = panics.Call(func() { reason = t.config.RedactReason(text, err) })
	return cut(reason, maxReason)
}

// logged is the text of a failure as an error for the log. The error itself may be huge, or panic.
func (f failure) logged() error { return loggedError(f.reason) }

type loggedError string

func (e loggedError) Error() string { return string(e) }

// errUnmarshal is the failure of a message that the marshaler could not read.
type errUnmarshal string

func (e errUnmarshal) Error() string { return "cannot unmarshal the message: " + string(e) }

// errorText returns the error's text, bounded. Some errors panic in their Error method.
func errorText(err error, bytes int) (text string) {
	if panics.Call(func() { text = err.Error() }) != nil {
		text = fmt.Sprintf("%T: its Error method panicked", err)
	}
	return cut(text, bytes)
}

// errorType returns the type of the error's root, bounded.
func errorType(err error) string {
	if recovered, is := err.(recoveredPanic); is {
		err = recovered.PanicError
	}
	return cut(panics.TypeOf(err), maxErrorType)
}

// cut returns at most this many bytes of the text, as valid UTF-8.
func cut(text string, bytes int) string {
	if len(text) > bytes {
		text = text[:bytes]
		for i := 0; i < utf8.UTFMax-1 && len(text) > 0; i++ {
			if r, size := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || size != 1 {
				break
			}
			text = text[:len(text)-1]
		}
	}
	valid := strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?") // PostgreSQL's JSON holds no NUL
	return valid[:min(len(valid), bytes)]
}
