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
	return server.Start(ctx, server.Plan{
		Name: "redis-server", Ending: syscall.SIGKILL,
		Command: func(folder string, port int) (string, []string, error) {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), []string{
				path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes",
				"--save", "", "--daemonize", "no",
			}, nil
		},
		Answers: func(ctx context.Context, address string) error {
			client := redis.NewClient(&redis.Options{Addr: address})
			defer func() { _ = client.Close() }()
			return client.Ping(ctx).Err()
		},
	})
}

// RedisWritesAtOnce makes a Redis answer after it has written, until it is started again: a SIGKILL then costs nothing.
// Else it may answer up to two seconds before, while the disk is busy.
func RedisWritesAtOnce(ctx context.Context, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = client.Close() }()
	return client.ConfigSet(ctx, "appendfsync", "always").Err()
}
