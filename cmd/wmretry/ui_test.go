package main

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUIForOtherMachines: a page that other machines reach answers to no name of a foreign page either.
func TestUIForOtherMachines(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "ui", "--listen", "0.0.0.0:0", "--allow-remote", "--host", "ops.example")
	p.await(p.stdout, "Ctrl-C stops it")
	p.await(p.stderr, "the page has no login")
	port := regexp.MustCompile(`:(\d+)/\n`).FindStringSubmatch(p.stdout.String())
	require.NotNil(t, port, p.stdout)
	for host, want := range map[string]int{
		"127.0.0.1": 200, "10.1.2.3": 200, "localhost": 200, "ops.example": 200, "evil.example": 403,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port[1]+"/", nil)
		require.NoError(t, err)
		r.Host = host + ":" + port[1]
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, want, answer.StatusCode, host)
	}
}
