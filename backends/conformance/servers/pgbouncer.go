//go:build unix

package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/tieredretry/watermill-retry/tools/server"
)

// PgBouncer starts an installed PgBouncer, or that of the Debian package, which it installs, before a PostgreSQL. The
// mode is a pool_mode, and sessions is how many of the server it uses. URL is a connection string with any database of
// the server.
func PgBouncer(ctx context.Context, postgres, mode string, sessions int) (*Server, error) {
	path, err := server.Program(ctx, "pgbouncer", "pgbouncer", []string{"pgbouncer"}, "/usr/sbin")
	if err != nil {
		return nil, err
	}
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	behind, err := url.Parse(postgres)
	if err != nil {
		return nil, err
	}
	return server.Start(ctx, server.Plan{
		Name: "PgBouncer", User: credential, Ending: syscall.SIGTERM,
		Command: func(folder string, port int) (string, []string, error) {
			config, users := filepath.Join(folder, "pgbouncer.ini"), filepath.Join(folder, "users.txt")
			text := fmt.Sprintf("[databases]\n* = host=%s port=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\n"+
				"unix_socket_dir =\nauth_type = trust\nauth_file = %s\npool_mode = %s\ndefault_pool_size = %d\n"+
				"max_client_conn = 1000\nignore_startup_parameters = extra_float_digits\n",
				behind.Hostname(), behind.Port(), port, users, mode, sessions)
			address := *behind
			address.Host = "127.0.0.1:" + strconv.Itoa(port)
			return address.String(), []string{path, config}, errors.Join(os.WriteFile(config, []byte(text), 0o644),
				os.WriteFile(users, fmt.Appendf(nil, "%q \"\"\n", behind.User.Username()), 0o644))
		},
		Answers: func(ctx context.Context, url string) error {
			parsed, err := pgx.ParseConfig(url)
			if err != nil {
				return err
			}
			parsed.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			connection, err := pgx.ConnectConfig(ctx, parsed)
			if err != nil {
				return err
			}
			return connection.Close(ctx)
		},
	})
}
