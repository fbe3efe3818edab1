//go:build unix

package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// PostgreSQL starts a new cluster of an installed PostgreSQL, or of the Debian package, which it installs. URL is a
// connection string. The server's time zone is not UTC, to test that the code does not depend on it.
func PostgreSQL(ctx context.Context) (*Server, error) {
	initdb, err := server.Program(ctx, "initdb", "postgresql", []string{"postgresql"}, "/usr/lib/postgresql/*/bin")
	if err != nil {
		return nil, err
	}
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	return server.Start(ctx, server.Plan{
		Name: "PostgreSQL", User: credential, Ending: syscall.SIGQUIT,
		Command: func(folder string, port int) (string, []string, error) {
			data := filepath.Join(folder, "data")
			return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port), []string{
				filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", strconv.Itoa(port),
				"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
				"-c", "max_connections=800", "-c", "timezone=America/New_York",
			}, makeCluster(ctx, data, initdb, credential)
		},
		Answers: func(ctx context.Context, url string) error {
			connection, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			return connection.Close(ctx)
		},
	})
}

func makeCluster(ctx context.Context, data, initdb string, credential *syscall.Credential) error {
	command := exec.CommandContext(ctx, initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync")
	command.Dir = filepath.Dir(data)
	command.SysProcAttr = server.Attributes(credential, syscall.SIGKILL)
	if words, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(words)))
	}
	return nil
}

// unprivileged returns another user where this process runs as root: PostgreSQL refuses to run as root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "daemon"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, and neither the user postgres nor the user daemon " +
		"exists: run this as another user")
}
