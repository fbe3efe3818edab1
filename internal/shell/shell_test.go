package shell

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWord: a shell reads each word as the text.
func TestWord(t *testing.T) {
	for text, want := range map[string]string{
		"orders.retry.5s": "orders.retry.5s", "/": "/", "": "''", "a b": "'a b'", "it's; rm -rf x": `'it'\''s; rm -rf x'`, "$HOME": "'$HOME'", "é": "'é'",
	} {
		assert.Equal(t, want, Word(text))
		for _, word := range []string{Word(text), Quote(text)} {
			output, err := exec.Command("sh", "-c", "printf %s "+word).Output()
			require.NoError(t, err)
			assert.Equal(t, text, string(output))
		}
	}
}
