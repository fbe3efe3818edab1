package middleware_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// nilTyped is an error whose Error method panics on a nil pointer.
type nilTyped struct{}

func (e *nilTyped) Error() string { return *(*string)(nil) }

// panicking is an error whose other methods panic.
type panicking struct{ error }

func (panicking) Permanent() bool           { panic("in Permanent") }
func (panicking) RetryAfter() time.Duration { panic("in RetryAfter") }
func (panicking) Unwrap() error             { panic("in Unwrap") }

// A nil pointer in an error is a common mistake.
func TestErrorsWhoseMethodsPanicAreFailures(t *testing.T) {
	var nilPath *os.PathError
	for name, failure := range map[string]error{
		"nil pointer":         nilPath,
		"nil pointer wrapped": fmt.Errorf("billing: %w", nilPath),
		"methods that panic":  panicking{errDown},
		"joined":              errors.Join(errDown, nilPath, panicking{errDown}),
	} {
		t.Run(name, func(t *testing.T) {
			tiered, sent := setup(t)
			handles(t, tiered.Middleware(failing(failure)), messageOf(routed))
			assert.Equal(t, "1s.orders", sent.only(t).topic)
			handles(t, tiered.Middleware(func(*message.Message) ([]*message.Message, error) { panic(failure) }), messageOf(routed))
		})
	}
}

func TestReasonIsAtMost1KiBOfValidUTF8(t *testing.T) {
	for name, failure := range map[string]error{
		"10 MB":                         errors.New(strings.Repeat("é", 5_000_000)),
		"10 MB, cut inside a character": errors.New("x" + strings.Repeat("é", 5_000_000)),
		"invalid UTF-8":                 errors.New(strings.Repeat("\xff\xfe", 700)),
		"NUL":                           errors.New(strings.Repeat("\x00", 700)),
		"nil pointer":                   (*nilTyped)(nil),
		"empty":                         errors.New(""),
		"wrapped":                       fmt.Errorf("a: %w", (*nilTyped)(nil)),
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
