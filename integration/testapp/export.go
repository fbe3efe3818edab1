package testapp

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// CheckExport checks each line of an export of dead letters with the schema of docs. The test runs in a folder below
// integration.
func CheckExport(t testing.TB, file []byte) {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "docs", "letters.schema.json"))
	require.NoError(t, err)
	require.NotEmpty(t, file)
	for line := range bytes.Lines(file) {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(value), "%s", line)
	}
}
