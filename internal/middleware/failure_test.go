package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
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

// The text of the marshaler's error is in no error that the router logs when the message is given back.
func TestMarshalerErrorIsNotReturnedAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		tiered, sent := setup(t, typeOnly)
		msg := messageOf(ctx)
		msg.Metadata[recordkey.Properties], msg.Metadata[recordkey.UnmarshalError] = "x", secretText
		_, err := tiered.Middleware(failing(errDown))(msg)
		require.ErrorIs(t, err, context.Canceled)
		assert.NotContains(t, err.Error(), secretText)
		assert.Empty(t, sent.copies)
	})
}
