package middleware_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

const secretText = "secret-4711"

// RedactReason gets more of the text than is recorded.
func TestSecretAtTheEndOfTheReasonIsRedactedBeforeTheCut(t *testing.T) {
	sent := &recorder{}
	config := configOf(sent)
	config.Policy.RedactReason = func(reason string, _ error) string { return strings.ReplaceAll(reason, secretText, "***") }
	tiered, err := config.Make(nil)
	require.NoError(t, err)
	_, err = tiered.Middleware(failing(errors.New(strings.Repeat("x", 1024-len(secretText)/2) + secretText)))(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.NotContains(t, sent.only(t).msg.Metadata[recordkey.Reason], secretText[:3])
}

func TestRedactedSecretsAreInNoRecordAndNoLog(t *testing.T) {
	ctx := routerContext(t)
	secret := errors.New("cannot log in with " + secretText)
	for name, row := range map[string]struct {
		change func(*settings)
		want   string
	}{
		"redacted": {func(c *settings) {
			c.Policy.RedactReason = func(reason string, _ error) string { return strings.ReplaceAll(reason, secretText, "***") }
		}, "***"},
		"type only": {func(c *settings) { c.Policy.OmitReason = true }, ""},
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
				sent, logs := &recorder{}, &logRecorder{}
				config := configOf(sent)
				row.change(&config)
				tiered, err := config.Make(logs)
				require.NoError(t, err)
				_, err = tiered.Middleware(h)(messageOf(ctx))
				require.NoError(t, err)
				metadata := sent.only(t).msg.Metadata
				assert.Contains(t, metadata[recordkey.Reason], row.want)
				assert.Equal(t, "*errors.errorString", metadata[recordkey.ErrorType])
				for key, value := range metadata {
					assert.NotContains(t, value, secretText, key)
				}
				assert.NotEmpty(t, logs.text.String())
				assert.NotContains(t, logs.text.String(), secretText)
			})
		}
	}
}

// The text of the marshaler's error is in no error that the router logs when the message is given back.
func TestMarshalerErrorIsNotReturnedAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		tiered, sent := setup(t, func(c *settings) { c.Policy.OmitReason = true })
		msg := messageOf(ctx)
		msg.Metadata[recordkey.Properties], msg.Metadata[recordkey.UnmarshalError] = "x", secretText
		_, err := tiered.Middleware(failing(errDown))(msg)
		require.ErrorIs(t, err, context.Canceled)
		assert.NotContains(t, err.Error(), secretText)
		assert.Empty(t, sent.copies)
	})
}
