package relayletters_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestLettersKeepTheTrace: a redriven message has the trace of its last attempt, and no failure.
func TestLettersKeepTheTrace(t *testing.T) {
	t.Parallel()
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		var got []*message.Message
		stop := shelfApp(t, s, backoff.Schedule{time.Second}, func(msg *message.Message) error {
			got = append(got, msg.Copy())
			return nil
		})
		defer stop()
		s.dead(t, 0, 1)
		record, _ := retry.ReadRecord(s.kept[deadTopic][0].Message.Metadata)
		record.Traceparent = traceparent
		record.Write(s.kept[deadTopic][0].Message.Metadata)
		_, err := s.letters(t).Redrive(t.Context(), deadTopic, letters.Redrive{})
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, got, 1)
		assert.Equal(t, traceparent, got[0].Metadata[retry.TraceparentKey])
		assert.NotContains(t, got[0].Metadata, recordkey.Failures)
	})
}
