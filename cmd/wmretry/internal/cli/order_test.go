package cli

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKeyWord: what is shown of a key is the key for a shell, and for the command.
func TestKeyWord(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]struct{ word, arguments string }{
		"customer-7":   {"customer-7", "customer-7."},
		"":             {"''", "."},
		"a b":          {"'a b'", "a b."},
		"--help":       {"-- --help", "--.--help."},
		"a\nb":         {`$'a\nb'`, "a\nb."},
		"it's \x1b[2J": {`$'it\'s \x1b[2J'`, "it's \x1b[2J."},
		"\u202e\\":     {`$'\u202e\\'`, "\u202e\\."},
	} {
		assert.Equal(t, want.word, keyWord(key))
		output, err := exec.Command("bash", "-c", "export LC_ALL=C.UTF-8; printf '%s.' "+want.word).Output()
		require.NoError(t, err)
		assert.Equal(t, want.arguments, string(output))
	}
}
