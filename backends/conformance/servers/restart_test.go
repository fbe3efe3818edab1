package servers_test

import (
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
)

// TestRestart: a server that was killed answers again at its address.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, backend := range registry.All() {
		if backend.Start == nil {
			continue
		}
		t.Run(backend.Name, func(t *testing.T) {
			server, err := backend.Start(t.Context())
			require.NoError(t, err)
			t.Cleanup(server.Stop)
			if server.Restart == nil {
				return // it keeps nothing
			}
			for range 2 {
				require.NoError(t, server.Restart(t.Context()))
				address := server.URL
				if uri, err := url.Parse(server.URL); err == nil && uri.Host != "" {
					address = uri.Host
				}
				connection, err := net.Dial("tcp", address)
				require.NoError(t, err)
				require.NoError(t, connection.Close())
			}
			server.Stop()
			require.ErrorContains(t, server.Restart(t.Context()), "is stopped")
		})
	}
}
