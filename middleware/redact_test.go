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

func redacting(c *settings) {
	c.Policy.RedactReason = func(reason string, _ error) string { return strings.ReplaceAll(reason, secretText, "***") }
}

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
		tiered, sent := setup(t, func(c *settings) { c.Policy.OmitReason = true })
		msg := messageOf(ctx)
		msg.Metadata[recordkey.Properties], msg.Metadata[recordkey.UnmarshalError] = "x", secretText
		_, err := tiered.Middleware(failing(errDown))(msg)
		require.ErrorIs(t, err, context.Canceled)
		assert.NotContains(t, err.Error(), secretText)
		assert.Empty(t, sent.copies)
	})
}
