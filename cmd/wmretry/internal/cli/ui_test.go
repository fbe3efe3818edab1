package cli

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUIRefusesOtherMachines: the page has no login.
func TestUIRefusesOtherMachines(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"0.0.0.0:0": "--allow-remote", ":8080": "--allow-remote", "10.0.0.1:8080": "--allow-remote", "example.com:8080": "--allow-remote", "8080": "an address and a port",
	} {
		var stderr bytes.Buffer
		e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
		assert.Equal(t, codeUsage, run(context.Background(), e, []string{"ui", "--listen", listen}), listen)
		assert.Contains(t, stderr.String(), want, listen)
	}
}

func TestUILoopback(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.8.8.8:0": true, "[::1]:8080": true, "localhost:8080": true, "[::]:8080": false, "localhost.example.com:80": false,
	} {
		got, err := isLoopback(listen)
		require.NoError(t, err)
		assert.Equal(t, want, got, listen)
	}
}

func TestUIHostNames(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"localhost", "127.0.0.1", "::1"}, uiFlags{listen: "127.0.0.1:0"}.hostNames(true))
	assert.Equal(t, []string{"localhost", "127.0.0.1", "::1", "127.8.8.8"}, uiFlags{listen: "127.8.8.8:0"}.hostNames(true))
	assert.Equal(t, []string{"localhost", "127.0.0.1", "::1", "ops.example"}, uiFlags{listen: "127.0.0.1:0", hosts: []string{"ops.example"}}.hostNames(true))
	assert.Nil(t, uiFlags{listen: "0.0.0.0:80"}.hostNames(false), "every name")
}
