package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
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
		"TLS to a plain server": {"rediss://a", context.DeadlineExceeded, "A server without TLS does not answer a client that has TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			address, err := Parse(row.address)
			require.NoError(t, err)
			assert.ErrorContains(t, Config{Address: address}.unreachable(row.err), row.want)
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
