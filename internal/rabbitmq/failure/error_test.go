package failure

import (
	"context"
	"errors"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestErrorNamesTheMessage(t *testing.T) {
	t.Parallel()
	broker := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "no"}
	err := error(&Error{Exchange: "retry", RoutingKey: "10s.orders", MessageUUID: "uuid", Err: publish.ErrRefused, Cause: broker})
	require.ErrorIs(t, err, publish.ErrRefused)
	require.NotErrorIs(t, err, publish.ErrNacked)
	var cause *amqp091.Error
	require.True(t, errors.As(err, &cause))
	require.Same(t, broker, cause)
	for _, word := range []string{`"retry"`, `"10s.orders"`, `"uuid"`, "refused", "403"} {
		assert.Contains(t, err.Error(), word)
	}

	err = &Error{Err: publish.ErrNacked, RoutingKey: strings.Repeat("x", 1000)}
	require.ErrorIs(t, err, publish.ErrNacked)
	require.NotErrorIs(t, err, context.Canceled)
	assert.Less(t, len(err.Error()), 500)
}
