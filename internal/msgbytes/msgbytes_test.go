package msgbytes_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/msgbytes"
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

// A message comes back byte for byte.
func TestAMessageStaysTheSame(t *testing.T) {
	t.Parallel()
	for name, msg := range messages() {
		t.Run(name, func(t *testing.T) {
			got, err := msgbytes.Decode(string(msgbytes.Encode(msg)))
			require.NoError(t, err)
			same(t, msg, got)
		})
	}
}

// What was not encoded by this package is refused, wherever it ends.
func TestWhatIsNoMessageIsRefused(t *testing.T) {
	t.Parallel()
	whole := string(msgbytes.Encode(messages()["small"]))
	for end := range len(whole) - len("payload") {
		_, err := msgbytes.Decode(whole[:end])
		assert.ErrorIs(t, err, msgbytes.ErrLayout, "%q", whole[:end])
	}
	for _, text := range []string{
		"\x02", "hello", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01\x00\xff\xff\x03",
	} {
		_, err := msgbytes.Decode(text)
		assert.ErrorIs(t, err, msgbytes.ErrLayout, "%q", text)
	}
}

func TestSeveralMessagesStayTheSame(t *testing.T) {
	t.Parallel()
	all := messages()
	sent := []*message.Message{all["small"], all["hostile"], all["empty"], all["small"]}
	whole := string(msgbytes.EncodeAll(sent))
	got, err := msgbytes.DecodeAll(whole)
	require.NoError(t, err)
	require.Len(t, got, len(sent))
	for i := range sent {
		same(t, sent[i], got[i])
	}
	none, err := msgbytes.DecodeAll("")
	require.NoError(t, err)
	assert.Empty(t, none)
	_, err = msgbytes.DecodeAll(whole[:len(whole)-1])
	assert.ErrorIs(t, err, msgbytes.ErrLayout)
}
