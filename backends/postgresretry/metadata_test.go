package postgresretry

import (
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMetadataComesBackAsItWas(t *testing.T) {
	t.Parallel()
	for _, metadata := range []message.Metadata{
		{}, {"": ""}, {"a": "b", "Ä": "ö\n\x01"}, {"nul": "a\x00b", "\x00": ""}, {"odd": "\xff"},
		{"\xc3": "valid", "a": "b"},
		{"quotes": `"\`, "html": "<a>&"},
	} {
		text, err := encodeMetadata(metadata)
		require.NoError(t, err)
		assert.True(t, json.Valid([]byte(text)), text)
		assert.Equal(t, metadata, decodeMetadata([]byte(text)), text)
	}
	text, err := encodeMetadata(nil)
	require.NoError(t, err)
	assert.Equal(t, message.Metadata{}, decodeMetadata([]byte(text)))
}

// A row of another program is a message, too: an error would stop those behind it.
func TestMetadataOfAnotherProgram(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]message.Metadata{
		`{"n": 1, "o": {"a": [1]}, "s": "t"}`: {"n": "1", "o": `{"a": [1]}`, "s": "t"},
		`null`:                                {},
		`[1, 2]`:                              {unreadableKey: "[1, 2]"},
		`"text"`:                              {unreadableKey: `"text"`},
	} {
		assert.Equal(t, want, decodeMetadata([]byte(text)), text)
	}
}
