package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// TestClaimsOfTheList: each row of the list is a claim that the program can read, and that it measures.
func TestClaimsOfTheList(t *testing.T) {
	t.Parallel()
	all := claims.Of(claims.List, "Claims")
	require.Len(t, all, strings.Count(claims.Section(claims.List, "Claims"), "\n| `"))
	require.NotEmpty(t, all)
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var code string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		code += string(text)
	}
	for _, c := range all {
		assert.Contains(t, code, "\""+c.Name+"\"")
	}
}
