package middleware_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// redrivenTwice is the history of a message that was redriven two times.
func redrivenTwice() letters.Redriven {
	once := letters.Redriven{}.Add(letters.PastRedrive{Run: "run 0", By: "me", At: time.Unix(0, 0)})
	return once.Add(letters.PastRedrive{Run: "run 1", By: "me", At: time.Unix(1, 0)})
}

// A redriven message has failed never before: all of its retries are left. It keeps its history, on its tiers and as a dead letter.
func TestARedrivenMessageCountsFromZero(t *testing.T) {
	t.Parallel()
	tiered, sent := setup(t)
	history := redrivenTwice()
	msg := messageOf(routed)
	history.Write(msg.Metadata)
	fail := tiered.Middleware(failing(errDown))
	for failures := 1; failures <= 5; failures++ {
		handles(t, fail, msg)
		c := sent.last()
		record, found := retry.ReadRecord(c.msg.Metadata)
		require.True(t, found)
		assert.Equal(t, failures, record.Failures)
		assert.Equal(t, failures == 5, record.DeadReason == retry.DeadReasonExhausted, c.topic)
		read, found := letters.ReadRedriven(c.msg.Metadata)
		require.True(t, found)
		assert.Equal(t, history, read)
		msg = redelivered(routed, c)
	}
	tiered, sent = setup(t)
	msg = messageOf(routed)
	history.Write(msg.Metadata)
	handles(t, tiered.Middleware(failing(backoff.Permanent(errDown))), msg)
	assert.Equal(t, history.String(), sent.only(t).msg.Metadata[recordkey.Redriven])
}
