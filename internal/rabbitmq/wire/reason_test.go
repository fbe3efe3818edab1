package wire

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// TestTheReasonOfAMessageThatTheClientCannotRead is told from that of a lost connection, and both mean that the
// connection is lost.
func TestTheReasonOfAMessageThatTheClientCannotRead(t *testing.T) {
	t.Parallel()
	ofClient := func(cause string) *amqp091.Error { return &amqp091.Error{Code: amqp091.FrameError, Reason: cause} }
	require.ErrorIs(t, reasonOf(ofClient(amqp091.ErrSyntax.Error())), ErrUnreadable)
	require.True(t, IsLost(reasonOf(ofClient(amqp091.ErrSyntax.Error()))))
	require.NotErrorIs(t, reasonOf(ofClient("EOF")), ErrUnreadable)
	require.NotErrorIs(t, reasonOf(&amqp091.Error{Code: amqp091.SyntaxError, Reason: amqp091.ErrSyntax.Reason, Server: true}), ErrUnreadable)
}
