package redisretry

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

func messages() map[string]*message.Message {
	hostile := message.NewMessage("\x00\xff", []byte("\x00{\"a\":\"\xff\"}"))
	hostile.Metadata = message.Metadata{
		"": "", "\x00": "\xff\xfe", strings.Repeat("k", 70_000): strings.Repeat("v", 300),
	}
	return map[string]*message.Message{
		"empty":   message.NewMessage("", nil),
		"small":   {UUID: "1", Payload: []byte("payload"), Metadata: message.Metadata{"key": "value"}},
		"hostile": hostile,
		"large":   message.NewMessage("2", make([]byte, 1<<20)),
	}
}

func same(t *testing.T, want, got *message.Message) {
	t.Helper()
	assert.Equal(t, want.UUID, got.UUID)
	assert.Equal(t, []byte(want.Payload), append([]byte(nil), got.Payload...))
	assert.Equal(t, len(want.Metadata), len(got.Metadata))
	for key, value := range want.Metadata {
		assert.Equal(t, value, got.Metadata[key])
	}
}

// The entries of streams are those of watermill-redisstream.
func TestEntriesAreThoseOfRedisstream(t *testing.T) {
	t.Parallel()
	for name, msg := range messages() {
		t.Run(name, func(t *testing.T) {
			fields, err := fieldsOf(msg)
			require.NoError(t, err)
			require.Len(t, fields, 6)
			received := map[string]any{} // as the server returns it
			for i := 0; i < len(fields); i += 2 {
				switch value := fields[i+1].(type) {
				case []byte:
					received[fields[i].(string)] = string(value)
				case string:
					received[fields[i].(string)] = value
				}
			}
			stock, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(received)
			require.NoError(t, err)
			same(t, msg, stock)

			written, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("topic", msg)
			require.NoError(t, err)
			for key, value := range written {
				if bytes, ok := value.([]byte); ok {
					written[key] = string(bytes)
				}
			}
			got, err := messageOf(written)
			require.NoError(t, err)
			same(t, msg, got)
		})
	}
}

// An entry that cannot be read loses nothing as a dead letter.
func TestAForeignEntryIsAWholeDeadLetter(t *testing.T) {
	t.Parallel()
	fields := map[string]any{"payload": "body", "other": "value"}
	_, err := messageOf(fields)
	require.Error(t, err)
	letter := foreignEntry("orders", "1-0", fields, errors.New("unreadable"))
	assert.Equal(t, "body", string(letter.Payload))
	assert.Equal(t, "value", letter.Metadata["other"])
	record, ok := retry.ReadRecord(letter.Metadata)
	require.True(t, ok)
	assert.Equal(t, relay.DeadReasonForeign, record.DeadReason)
	assert.Equal(t, "orders", record.Topic)
	assert.Equal(t, "unreadable", record.Reason)
}
