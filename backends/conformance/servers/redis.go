//go:build unix

package servers

import (
	"context"
	"net"
	"strconv"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// Redis starts an installed redis-server, or that of the Debian package, which it installs. It writes an append-only
// file. URL is host:port.
func Redis(ctx context.Context) (*Server, error) {
	path, err := server.Program(ctx, "redis-server", "redis-server", []string{"redis-server"})
	if err != nil {
		return nil, err
	}
	return launch(ctx, func(port int) (*program, error) {
		data, err := server.Folder("redis")
		if err != nil {
			return nil, err
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		return &program{
			name: "redis-server", url: address, folder: data, ending: syscall.SIGKILL,
			command: []string{
				path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", data, "--appendonly", "yes",
				"--save", "", "--daemonize", "no",
			},
			answers: func(ctx context.Context) error {
				client := redis.NewClient(&redis.Options{Addr: address})
				defer func() { _ = client.Close() }()
				return client.Ping(ctx).Err()
			},
		}, nil
	})
}
