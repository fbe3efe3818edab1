package middleware_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
)

// refusedText is why a backend refuses a copy for good.
type refusedText string

func (e refusedText) Error() string { return string(e) }

func refusedWith(text string) error {
	return &unpublished.Error{Kind: unpublished.Refused, Err: refusedText(text)}
}

// TestAForgedLeftOffIsNoLastForm: the first refusal makes a dead letter, and no copy on a tier has the key.
func TestAForgedLeftOffIsNoLastForm(t *testing.T) {
	for name, refuses := range map[string]bool{"tier takes the copy": false, "tier refuses the copy": true} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t)
			sent.fail = func(try int) error {
				if refuses && try == 1 {
					return refusedWith("refused")
				}
				return nil
			}
			msg := messageOf(routed)
			msg.Metadata[recordkey.Failures], msg.Metadata[recordkey.Topic] = "1", topic
			msg.Metadata[recordkey.DeadReason], msg.Metadata[recordkey.LeftOff] = "x", "forged"
			began := time.Now()
			handles(t, tiered.Middleware(failing(errDown)), msg)
			assert.Zero(t, time.Since(began), "it is not held")
			assert.NotContains(t, sent.only(t).msg.Metadata, recordkey.LeftOff)
		})
	}
}

// TestARefusalWithoutATextIsARefusal: the dead letter gets its last form, and is then tried once a minute.
func TestARefusalWithoutATextIsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Policy.MaxHold = 90 * time.Second })
		sent.fail = func(try int) error {
			require.Less(t, try, 10, "a hot loop")
			return refusedWith("")
		}
		_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
		require.ErrorContains(t, err, "held for MaxHold")
		assert.Equal(t, 5, sent.tries, "retry, dead letter, its last form, after a minute, at the end")
	})
}

// TestSecretsAreInNoLeftOff: the text of a publisher can have values of the message.
func TestSecretsAreInNoLeftOff(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*settings)
		want   string
	}{
		"redacted":  {redacting, "property type is ***"},
		"type only": {func(c *settings) { c.Policy.OmitReason = true }, "middleware_test.refusedText"},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, row.change)
			sent.fail = func(try int) error {
				if try < 3 {
					return refusedWith("property type is " + secretText)
				}
				return nil
			}
			handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
			assert.Equal(t, row.want, sent.only(t).msg.Metadata[recordkey.LeftOff])
		})
	}
}
