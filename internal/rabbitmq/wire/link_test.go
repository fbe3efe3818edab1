package wire

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"

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
	t.Parallel()
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
