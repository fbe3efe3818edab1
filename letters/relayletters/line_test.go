package relayletters_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/letters"
)

// TestExportAndImport: every byte of a letter comes back, also what is not UTF-8 and what has no UUID.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	s := newShelf()
	store := s.letters(t)
	s.dead(t, 0, 5)
	odd := orderOf("odd\xff")
	odd.Metadata["\xfe"], odd.Metadata["empty"], odd.Metadata["base64:"] = "a\x00b", "", "base64:YQ=="
	require.NoError(t, s.Publish(deadTopic, odd, message.NewMessage("", []byte{})))
	was := browse(t, store, deadTopic, letters.Filter{})
	of := operate.Of(store)
	var file, some bytes.Buffer
	n, err := of.Export(t.Context(), deadTopic, ofNetwork, &some)
	require.NoError(t, err)
	assert.Equal(t, strings.Count(some.String(), "\n"), n)
	summary, err := store.Discard(t.Context(), deadTopic, letters.Discard{Export: &file})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 7, Done: 7}, summary)
	assert.Empty(t, s.ids(deadTopic))

	summary, err = of.Import(t.Context(), strings.NewReader(file.String()), letters.Redrive{DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 7, Done: 7}, summary)
	assert.Empty(t, s.ids(deadTopic))
	_, err = of.Import(t.Context(), strings.NewReader(file.String()), letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, was, browse(t, store, deadTopic, letters.Filter{}))
	_, err = of.Import(t.Context(), strings.NewReader(file.String()), letters.Redrive{To: "retry.dead.mailing"})
	require.NoError(t, err)
	assert.Len(t, browse(t, store, "retry.dead.mailing", letters.Filter{}), 7)
}

// TestWrongLines: a line that cannot be read ends the import, and the error has its number.
func TestWrongLines(t *testing.T) {
	t.Parallel()
	s := newShelf()
	of := operate.Of(s.letters(t))
	const good = `{"queue":"retry.dead.billing","headers":{},"properties":{},"body":"eA=="}`
	for line, want := range map[string]string{
		`{"half"`:                  "it is no letter of an export",
		`{"queue":"retry.dead.b"}`: `it is no letter of an export: the field "headers" is missing`,
		"{\"queue\":\"\xff\"}":     "not valid UTF-8",
		strings.Replace(good, `"body"`, `"more":1,"body"`, 1):                        `the field "more" is unknown`,
		strings.Replace(good, `"properties":{}`, `"properties":{"priority":1}`, 1):   `property "priority", which only RabbitMQ keeps`,
		strings.Replace(good, `"headers":{}`, `"headers":{"n":{"l":"1"}}`, 1):        "headers.n is no text, and only RabbitMQ has other headers",
		strings.Replace(good, `"headers":{}`, `"headers":{"n":{"S":"base64:%"}}`, 1): "is not base64",
		strings.Replace(good, "retry.dead.billing", "orders", 1):                     `the letter was in "orders", which is no dead-letter topic`,
	} {
		summary, err := of.Import(t.Context(), strings.NewReader(good+"\n\n"+line+"\n"+good), letters.Redrive{})
		require.ErrorContains(t, err, "line 3: ", line)
		require.ErrorContains(t, err, want, line)
		require.ErrorContains(t, err, "; imported already: line 1 to 2; remove", line)
		assert.Equal(t, 1, summary.Done, line)
	}
	_, err := of.Keys(t.Context())
	require.ErrorContains(t, err, "cannot look at what waits")
}
