package servers_test

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
)

// TestNothingStays: a server answers until it is stopped, also after it was killed, and then its folder is gone.
func TestNothingStays(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	require.NoError(t, os.Chmod(os.Getenv("TMPDIR"), 0o755)) // PostgreSQL runs as another user where this is root
	require.NoError(t, os.Chmod(filepath.Dir(os.Getenv("TMPDIR")), 0o755))
	for _, backend := range registry.All() {
		if backend.Start == nil {
			continue
		}
		t.Run(backend.Name, func(t *testing.T) {
			server, err := backend.Start(t.Context())
			require.NoError(t, err)
			address := server.URL
			if uri, err := url.Parse(server.URL); err == nil && uri.Host != "" {
				address = uri.Host
			}
			answers := func() {
				connection, err := net.Dial("tcp", address)
				require.NoError(t, err)
				require.NoError(t, connection.Close())
			}
			answers()
			for range 2 {
				if server.Restart != nil { // else it keeps nothing
					require.NoError(t, server.Restart(t.Context()))
					answers()
				}
			}

			server.Stop()
			server.Stop()
			if server.Restart != nil {
				require.ErrorContains(t, server.Restart(t.Context()), "is stopped")
			}
			_, err = net.Dial("tcp", address)
			require.Error(t, err)
			left, err := os.ReadDir(os.Getenv("TMPDIR"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
