package backend

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
)

// closing is a store that notes its end.
type closing struct {
	letters.Store
	closed chan struct{}
}

func (c closing) Close() error { close(c.closed); return nil }

// TestASilentServer: the clients of NATS and Kafka do not end with a context. The command does, and leaves no
// connection open.
func TestASilentServer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		after time.Duration
		want  string
	}{
		"no answer": {time.Hour, "cannot connect to Slow at host:1: no answer within 10s; is Slow running there"},
		"Ctrl-C":    {3 * time.Second, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers, store := make(chan struct{}), closing{closed: make(chan struct{})}
				slow := &Kind{Name: "Slow", open: func(context.Context, Config) (*Store, error) {
					<-answers
					return &Store{Store: store}, nil
				}}
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(row.after, cancel).Stop()
				defer cancel()
				began := time.Now()
				_, err := Open(ctx, Config{Address: Address{slow, &url.URL{Host: "host:1"}}})
				require.ErrorContains(t, err, row.want)
				assert.Equal(t, min(row.after, connectTimeout), time.Since(began))
				close(answers)
				<-store.closed
			})
		})
	}
}

// TestUnreachable: what a client's error and the address say, is advised, with one mark between two clauses.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		address string
		err     error
		want    string
	}{
		"a stop at the end":     {"redis://a", errors.New("LOADING Redis is loading the dataset in memory."), "in memory; is Redis running there"},
		"no such database":      {"postgres://a/b", errors.New(`FATAL: database "b" does not exist (SQLSTATE 3D000)`), "; check the database in the address"},
		"a number too high":     {"redis://a/99", errors.New("ERR DB index is out of range"), "; check the database in the address"},
		"TLS to a plain server": {"rediss://a", context.DeadlineExceeded, "A server without TLS does not answer a client that has TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			address, err := Parse(row.address)
			require.NoError(t, err)
			assert.ErrorContains(t, Config{Address: address}.unreachable(row.err), row.want)
		})
	}
}

// TestAFaultIsNamedWithoutAServer: no server is asked about what a flag or the address has wrong.
func TestAFaultIsNamedWithoutAServer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		address string
		config  Config
		want    string
	}{
		"a table":    {"postgres://127.0.0.1:1/b", Config{Table: "bad name"}, `--table is "bad name": it must be a name`},
		"a prefix":   {"kafka://127.0.0.1:1", Config{Prefix: "bad name"}, `--prefix is "bad name": it must have at most 40`},
		"a database": {"redis://:secret@127.0.0.1:1/foo", Config{}, `redis://127.0.0.1:1/foo is no address of Redis: invalid database number: "foo"; it must be like redis://default@host:6379`},
		"a setting":  {"postgres://127.0.0.1:1/b?sslmode=never", Config{}, "is no address of PostgreSQL: "},
	} {
		t.Run(name, func(t *testing.T) {
			address, err := Parse(row.address)
			require.NoError(t, err)
			row.config.Address = address
			_, err = Open(t.Context(), row.config)
			require.ErrorContains(t, err, row.want)
			assert.NotContains(t, err.Error(), "running there")
			assert.NotContains(t, err.Error(), "secret")
			var fault Fault
			assert.ErrorAs(t, err, &fault)
		})
	}
}

// TestABrokenConnection is no refusal: what breaks before the broker has answered is no matter of permissions.
func TestABrokenConnection(t *testing.T) {
	t.Parallel()
	address, err := Parse("amqp://guest:guest@a/")
	require.NoError(t, err)
	o := Config{Address: address}
	for _, broken := range []error{amqp091.ErrClosed, fmt.Errorf("cannot connect: %w", amqp091.ErrClosed), &amqp091.Error{Code: amqp091.FrameError}} {
		assert.Equal(t, broken, o.refused(broken))
	}
	assert.ErrorContains(t, o.refused(&amqp091.Error{Code: amqp091.NotFound}), `check the virtual host "/"`)
}

// aNode returns the address of a server that answers as a node of Redis, and CLUSTER SLOTS with a text.
func aNode(t *testing.T, slots string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	answers := map[string]string{"hello": "-ERR unknown command\r\n", "ping": "+PONG\r\n", "cluster": slots}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					var words int
					_, _ = fmt.Sscanf(lines.Text(), "*%d", &words)
					var all []string
					for range 2 * words { // each is after its length
						lines.Scan()
						all = append(all, lines.Text())
					}
					_, _ = io.WriteString(conn, cmp.Or(answers[all[1]], "+OK\r\n"))
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// TestOneAddressOfRedis: a cluster of several nodes is reached by the addresses that they announce. The only node is
// reached by that of the user, such as a forwarded port, and so is a server that is no cluster.
func TestOneAddressOfRedis(t *testing.T) {
	t.Parallel()
	const at = "*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$1\r\n%[1]d\r\n" // a node on a port where none listens
	for name, row := range map[string]struct{ slots, want string }{
		"no cluster": {"-ERR This instance has cluster support disabled\r\n", ""},
		"one node":   {fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n"+at, 1), ""},
		"two nodes": {fmt.Sprintf("*2\r\n*3\r\n:0\r\n:99\r\n"+at, 1) + fmt.Sprintf("*3\r\n:100\r\n:16383\r\n"+at, 2),
			"whose nodes announce the addresses 127.0.0.1:1, 127.0.0.1:2, and these do not answer: dial tcp 127.0.0.1:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, err := Parse("redis://" + aNode(t, row.slots))
			require.NoError(t, err)
			store, err := Open(t.Context(), Config{Address: address})
			if row.want != "" {
				require.ErrorContains(t, err, row.want)
				return
			}
			require.NoError(t, err)
			assert.NoError(t, store.Close())
		})
	}
}

// TestOptionsOfAClusterAreThoseOfItsNodes, which have one database.
func TestOptionsOfAClusterAreThoseOfItsNodes(t *testing.T) {
	t.Parallel()
	client := cluster([]string{"127.0.0.1:1"}, redis.Options{ReadTimeout: 7 * time.Second, DB: 2, Username: "shop"})
	defer func() { assert.NoError(t, client.Close()) }()
	node := client.Options().NewClient(&redis.Options{Addr: "127.0.0.1:2", MaxRetries: -1})
	defer func() { assert.NoError(t, node.Close()) }()
	has := node.Options()
	assert.Equal(t, []any{"127.0.0.1:2", 7 * time.Second, 0, "shop", 0},
		[]any{has.Addr, has.ReadTimeout, has.DB, has.Username, has.MaxRetries})
}
