package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// over is a connection that has ended.
type over struct{ io.ReadWriteCloser }

func (over) Read([]byte) (int, error)    { return 0, io.EOF }
func (over) Write(b []byte) (int, error) { return 0, errors.New("closed") }
func (over) Close() error                { return nil }

// The client knows before the link that a connection has ended. It is not given out again.
func TestAwaitGivesNoClosedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := amqp091.Open(over{}, amqp091.Config{})
		require.Error(t, err)
		synctest.Wait()
		require.True(t, client.IsClosed())
		next, changed := &Connection{Client: &amqp091.Connection{}}, make(chan struct{})
		l := &Link{}
		l.state.Store(&State{Connection: &Connection{Client: client}, Changed: changed})
		got := make(chan *Connection, 1)
		go func() { got <- l.Await(t.Context().Done()) }()
		synctest.Wait()
		assert.Empty(t, got)
		l.state.Store(&State{Connection: next})
		close(changed)
		assert.Same(t, next, <-got)
	})
}

func TestHintOfAClientCertificate(t *testing.T) {
	for _, ended := range []error{amqp091.ErrClosed, io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		assert.Contains(t, hintOf(amqp091.URI{Scheme: "amqps"}, fmt.Errorf("write: %w", ended)), "client's certificate", ended)
		assert.Empty(t, hintOf(amqp091.URI{Scheme: "amqp"}, ended))
	}
	assert.Empty(t, hintOf(amqp091.URI{Scheme: "amqps"}, errors.New("tls: certificate required")), "the error already names the cause")
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	b := Backoff{Initial: 100 * time.Millisecond, Max: 500 * time.Millisecond}
	for range 2 {
		for _, bound := range []time.Duration{100, 200, 400, 500, 500} {
			bound *= time.Millisecond
			assert.Equal(t, bound, b.Bound())
			pause := b.Next()
			assert.LessOrEqual(t, pause, bound)
			assert.GreaterOrEqual(t, pause, bound/2)
		}
		b.Reset()
	}
	b.AtLeast(time.Second)
	assert.Equal(t, time.Second, b.Bound())
	assert.GreaterOrEqual(t, b.Next(), 500*time.Millisecond)
	assert.Equal(t, b.Max, b.Bound())
}

// TestTheReasonOfAMessageThatTheClientCannotRead is told from that of a lost connection, and both mean that the
// connection is lost.
func TestTheReasonOfAMessageThatTheClientCannotRead(t *testing.T) {
	ofClient := func(cause string) *amqp091.Error { return &amqp091.Error{Code: amqp091.FrameError, Reason: cause} }
	require.ErrorIs(t, reasonOf(ofClient(amqp091.ErrSyntax.Error())), ErrUnreadable)
	require.True(t, IsLost(reasonOf(ofClient(amqp091.ErrSyntax.Error()))))
	require.NotErrorIs(t, reasonOf(ofClient("EOF")), ErrUnreadable)
	require.NotErrorIs(t, reasonOf(&amqp091.Error{Code: amqp091.SyntaxError, Reason: amqp091.ErrSyntax.Reason, Server: true}), ErrUnreadable)
}
