package deadletter

import (
	"context"
	"fmt"
	"net"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// TestErrorsOfAClosedSocketAreALostConnection: the client returns them before it notices that the connection is closed.
func TestErrorsOfAClosedSocketAreALostConnection(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	socket, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, socket.Close())
	_, write := socket.Write([]byte("x"))
	_, read := socket.Read(make([]byte, 1))
	for _, err := range []error{
		write, read, amqp091.ErrClosed, &amqp091.Error{Code: amqp091.ConnectionForced}, &amqp091.Error{Code: amqp091.InternalError},
	} {
		require.ErrorIs(t, explain("read", "orders.dead", fmt.Errorf("a call: %w", err)), errLost)
	}
	for _, err := range []error{
		&amqp091.Error{Code: amqp091.NotFound, Recover: true}, &amqp091.Error{Code: amqp091.PreconditionFailed, Recover: true},
		context.DeadlineExceeded,
	} {
		require.NotErrorIs(t, explain("read", "orders.dead", err), errLost)
	}
}
