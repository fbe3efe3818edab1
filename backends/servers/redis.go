//go:build unix

package servers

import (
	"context"
	"fmt"
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
	return server.Try(ctx, func(port int) (*Server, error) {
		data, err := server.Folder("redis")
		if err != nil {
			return nil, err
		}
		p, err := server.Run(data, nil, syscall.SIGKILL, path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
			"--dir", data,
			"--appendonly", "yes", "--save", "", "--daemonize", "no")
		if err != nil {
			return nil, fmt.Errorf("cannot start %s: %w", path, err)
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		client := redis.NewClient(&redis.Options{Addr: address})
		defer func() { _ = client.Close() }()
		answers := func(ctx context.Context) error { return client.Ping(ctx).Err() }
		if err := server.Await(ctx, p.Ended, answers); err != nil {
			return nil, p.Explain("redis-server", err)
		}
		return &Server{URL: address, Stop: p.Stop}, nil
	})
}
