package middleware_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// nilTyped is an error whose Error method panics on a nil pointer.
type nilTyped struct{}

func (e *nilTyped) Error() string { return *(*string)(nil) }

// panicking is an error whose other methods panic.
type panicking struct{ error }

func (panicking) Permanent() bool           { panic("in Permanent") }
func (panicking) RetryAfter() time.Duration { panic("in RetryAfter") }
func (panicking) Unwrap() error             { panic("in Unwrap") }

func TestReasonIsAtMost1KiBOfValidUTF8(t *testing.T) {
	for name, failure := range map[string]error{
		"10 MB":                         errors.New(strings.Repeat("é", 5_000_000)),
		"10 MB, cut inside a character": errors.New("x" + strings.Repeat("é", 5_000_000)),
		"invalid UTF-8":                 errors.New(strings.Repeat("\xff\xfe", 700)),
		"NUL":                           errors.New(strings.Repeat("\x00", 700)),
		"nil pointer":                   (*nilTyped)(nil),
		"empty":                         errors.New(""),
		"wrapped":                       fmt.Errorf("a: %w", (*nilTyped)(nil)),
		"methods that panic":            panicking{errDown},
		"joined":                        errors.Join(errDown, (*os.PathError)(nil), panicking{errDown}),
	} {
		t.Run(name, func(t *testing.T) {
			tiered, sent := setup(t)
			handles(t, tiered.Middleware(failing(failure)), messageOf(routed))
			reason := sent.only(t).msg.Metadata[recordkey.Reason]
			assert.LessOrEqual(t, len(reason), 1024)
			assert.True(t, utf8.ValidString(reason))
			assert.NotContains(t, reason, "\x00")
		})
	}
}

const secretText = "secret-4711"

func redacting(c *settings) {
	c.Policy.RedactReason = func(reason string, _ error) string { return strings.ReplaceAll(reason, secretText, "***") }
}

func typeOnly(c *settings) { c.Policy.RedactReason = func(string, error) string { return "" } }

// RedactReason gets more of the text than is recorded.
func TestSecretAtTheEndOfTheReasonIsRedactedBeforeTheCut(t *testing.T) {
	tiered, sent := setup(t, redacting)
	handles(t, tiered.Middleware(failing(errors.New(strings.Repeat("x", 1024-len(secretText)/2)+secretText))), messageOf(routed))
	assert.NotContains(t, sent.only(t).msg.Metadata[recordkey.Reason], secretText[:3])
}

func TestRedactedSecretsAreInNoRecordAndNoLog(t *testing.T) {
	secret := errors.New("cannot log in with " + secretText)
	for name, row := range map[string]struct {
		change func(*settings)
		want   string
	}{
		"redacted":  {redacting, "***"},
		"type only": {typeOnly, ""},
		"redaction panics": {func(c *settings) {
			c.Policy.RedactReason = func(string, error) string { panic(secretText) }
		}, ""},
		"redaction is too long": {func(c *settings) {
			c.Policy.RedactReason = func(string, error) string { return strings.Repeat("*", 5000) }
		}, strings.Repeat("*", 1024)},
	} {
		for failure, h := range map[string]message.HandlerFunc{
			"error":     failing(secret),
			"panic":     func(*message.Message) ([]*message.Message, error) { panic(secret) },
			"permanent": failing(backoff.Permanent(secret)),
		} {
			t.Run(name+"/"+failure, func(t *testing.T) {
				tiered, sent := setup(t, row.change)
				handles(t, tiered.Middleware(h), messageOf(routed))
				metadata := sent.only(t).msg.Metadata
				assert.Contains(t, metadata[recordkey.Reason], row.want)
				assert.Equal(t, "*errors.errorString", metadata[recordkey.ErrorType])
				for key, value := range metadata {
					assert.NotContains(t, value, secretText, key)
				}
				assert.NotEmpty(t, sent.logs.String())
				assert.NotContains(t, sent.logs.String(), secretText)
			})
		}
	}
}

// A panic is a failure with its file and line. What a Recoverer inside makes of it loses nothing: its value decides as
// without it, the log has the stack, and hooks find both errors.
func TestPanicIsAFailureWithItsFileAndLine(t *testing.T) {
	panics := func(*message.Message) ([]*message.Message, error) { panic(backoff.Permanent(errDown)) }
	for name, h := range map[string]message.HandlerFunc{"": panics, "in a Recoverer": wmmiddleware.Recoverer(panics)} {
		tiered, sent := setup(t, observing)
		handles(t, tiered.Middleware(h), messageOf(routed))
		assert.Equal(t, "dead.orders", sent.only(t).topic)
		assert.Regexp(t, "^panic: the bank is down .*failure_test.go:", sent.record(t).Reason)
		assert.Equal(t, "*errors.errorString", sent.record(t).ErrorType, "the root of the error that was panicked with")
		var panicked *retry.PanicError
		require.ErrorAs(t, sent.events[0].Err, &panicked)
		assert.Contains(t, string(panicked.Stack), "TestPanicIsAFailureWithItsFileAndLine")
		var recovered wmmiddleware.RecoveredPanicError
		assert.Equal(t, name != "", errors.As(sent.events[0].Err, &recovered))
		assert.Equal(t, 1, sent.logs.lines("Handler panicked"))
	}
}

// Each function of the app ends the goroutine, as FailNow of a test does, with a message that it gets. Observers get one
// last event. A message that comes back is nacked after a pause.
func TestMessageIsSettledAfterGoexit(t *testing.T) {
	const acked, nacked = true, false
	exits := func(method string) func(*settings) { return observedBy(nil, breaks{method, runtime.Goexit}) }
	for name, row := range map[string]struct {
		change func(*settings)
		h      message.HandlerFunc
		want   bool
	}{
		"handler":                   {nil, exiting, acked},
		"handler, without a broker": {func(c *settings) { c.Publisher.(*recorder).fail = always(errNoBroker) }, exiting, nacked},
		"Begin":                     {exits("Begin"), succeed, nacked},
		"Event after a success":     {exits("Event"), succeed, nacked},
		"Event after a retry":       {exits("Event"), failing(errDown), acked},
		"Event after Goexit":        {exits("Event"), exiting, acked},
		"Event while the message is held": {func(c *settings) {
			exits("Event")(c)
			c.Publisher.(*recorder).fail = always(errNoBroker)
		}, failing(errDown), nacked},
		"Produced":                 {exits("Produced"), producing(1), nacked},
		"Traceparent":              {exits("Traceparent"), failing(errDown), nacked},
		"Traceparent after Goexit": {exits("Traceparent"), exiting, nacked},
		"MaxAgeFrom": {func(c *settings) {
			c.Policy.MaxAge, c.Policy.MaxAgeFrom = time.Hour, exit1[*message.Message, time.Time]
		}, succeed, nacked},
		"Rule.If": {func(c *settings) {
			c.Policy.Rules = []retry.Rule{{If: exit2[retry.Record, error, bool], Then: retry.Discard()}}
		}, failing(errDown), nacked},
		"Breaker.Failed": {func(c *settings) { c.Policy.Breaker = &retry.Breaker{Failed: exit1[error, bool]} }, failing(errDown), nacked},
		"RedactReason":   {func(c *settings) { c.Policy.RedactReason = exit2[string, error, string] }, failing(errDown), nacked},
		"destination": {func(c *settings) {
			c.Destination = func(backend.Copy) (to backend.Destination, err error) { runtime.Goexit(); return to, err }
		}, failing(errDown), nacked},
		"Publisher":        {func(c *settings) { c.Publisher.(*recorder).fail = exit1[int, error] }, failing(errDown), nacked},
		"the error's text": {nil, failing(exitingError{}), nacked},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, observing, row.change)
			msg := messageOf(routed)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = tiered.Middleware(row.h)(msg)
			}()
			<-ended
			select {
			case <-msg.Acked():
				assert.Equal(t, acked, row.want)
				assert.Equal(t, "1s.orders", sent.only(t).topic)
			case <-msg.Nacked():
				assert.Equal(t, nacked, row.want)
				assert.Empty(t, sent.copies)
				assert.GreaterOrEqual(t, time.Since(sent.began), time.Second, "a subscriber may not pace nacks")
			default:
				t.Error("the message is not settled")
			}
			last := map[bool]retry.Outcome{acked: retry.Retried, nacked: retry.GivenBack}[row.want]
			if name == "Event after a success" {
				last = retry.Processed
			}
			for i, outcome := range sent.outcomes() {
				assert.Equal(t, i == len(sent.events)-1, outcome == last, "%v", sent.outcomes())
			}
		})
	}
}

func exiting(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }

// exit1 and exit2 are functions of an app that end the goroutine.
func exit1[A, R any](A) (r R) { runtime.Goexit(); return r }

func exit2[A, B, R any](A, B) (r R) { runtime.Goexit(); return r }

type exitingError struct{}

func (exitingError) Error() string { runtime.Goexit(); return "" }

// spanEnd is a middleware whose deferred function recovers a panic and panics again with it, as the End of OpenTelemetry's spans does.
func spanEnd(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		defer func() {
			if recovered := recover(); recovered != nil {
				defer panic(recovered)
			}
		}()
		return h(msg)
	}
}

// deepEnd is spanEnd with a deferred function that panics below many frames of its own.
func deepEnd(frames int, h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		defer func() {
			recovered := recover()
			nested(frames, func() { panic(recovered) })
		}()
		return h(msg)
	}
}

// nested calls f below this many frames.
//
//go:noinline
func nested(frames int, f func()) {
	if frames > 0 {
		nested(frames-1, f)
		return
	}
	f()
}

func panicsFirst() { panic("boom") }

func derefsNil() { _ = *(*int)(nil) }

func TestPlaceOfAPanicIsTheFirst(t *testing.T) {
	run := func(t *testing.T, h message.HandlerFunc) string {
		tiered, sent := setup(t)
		handles(t, tiered.Middleware(h), messageOf(routed))
		return sent.record(t).Reason
	}
	below := func(frames int, f func()) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) {
			nested(frames, f)
			return nil, nil
		}
	}
	const first, null = "middleware_test.panicsFirst, failure_test.go:", "middleware_test.derefsNil, failure_test.go:"
	for name, row := range map[string]struct {
		h    message.HandlerFunc
		want string
	}{
		"panic":                              {below(0, panicsFirst), first},
		"nil pointer":                        {below(0, derefsNil), null},
		"again":                              {spanEnd(below(0, panicsFirst)), first},
		"again, below 64 frames":             {spanEnd(below(64, panicsFirst)), first},
		"again, twice, below 500 frames":     {spanEnd(spanEnd(below(500, panicsFirst))), first},
		"again, by a function of 500 frames": {deepEnd(500, spanEnd(deepEnd(70, below(70, panicsFirst)))), first},
		"below a middleware of 200 frames": {func(msg *message.Message) (produced []*message.Message, err error) {
			nested(200, func() { produced, err = spanEnd(below(200, panicsFirst))(msg) })
			return produced, err
		}, first},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Contains(t, run(t, row.h), row.want)
		})
		t.Run(name+", in a Recoverer", func(t *testing.T) {
			if frames := strings.Count(name, "00 frames") + strings.Count(name, "64"); frames == 0 { // debug.Stack leaves out frames beyond 100
				assert.Contains(t, run(t, wmmiddleware.Recoverer(row.h)), row.want)
			}
		})
		t.Run(name+", in a deferred function of another panic", func(t *testing.T) {
			defer func() {
				assert.Equal(t, "outer", recover())
			}()
			defer func() {
				nested(100, func() { assert.Contains(t, run(t, row.h), row.want) })
			}()
			panic("outer")
		})
	}
}

// The publisher panics while the handler's panic is settled.
func TestPlaceOfAPublishersPanicIsNotThatOfTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		sent.fail = func(try int) error {
			if try == 1 {
				derefsNil()
			}
			return nil
		}
		handles(t, tiered.Middleware(func(*message.Message) ([]*message.Message, error) { panicsFirst(); return nil, nil }), messageOf(routed))
		assert.Contains(t, sent.only(t).msg.Metadata[recordkey.Reason], "panicsFirst")
		assert.Equal(t, 1, sent.logs.lines("the publisher panicked"))
		assert.Regexp(t, `the publisher panicked: .*derefsNil, failure_test.go:`, sent.logs.String())
	})
}
