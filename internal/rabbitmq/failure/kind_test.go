package failure_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// temporaryError is an error of an app, as net.Error.
type temporaryError bool

func (temporaryError) Error() string     { return "the schema registry does not answer" }
func (e temporaryError) Temporary() bool { return bool(e) }

func TestKindsOfErrors(t *testing.T) {
	t.Parallel()
	const (
		none        = unpublished.Temporary
		refused     = unpublished.Refused
		closed      = unpublished.Closed
		rejected    = unpublished.Rejected
		unconfirmed = unpublished.Unconfirmed
	)
	broker := func(code int) error { return &amqp091.Error{Code: code, Server: true} }
	returned := errors.New("returned: 312 NO_ROUTE")
	for name, row := range map[string]struct {
		err  failure.Error
		want unpublished.Kind
	}{
		"unroutable":                                {failure.Error{Err: publish.ErrUnroutable, Cause: returned}, rejected},
		"unroutable, no exchange":                   {failure.Error{Err: publish.ErrUnroutable, Cause: broker(amqp091.NotFound)}, rejected},
		"unroutable, other arguments":               {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.PreconditionFailed)}, rejected},
		"unroutable, may not declare":               {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.AccessRefused)}, rejected},
		"unroutable, the app's redeclaration fails": {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: errors.New("no")}, rejected},
		"unroutable, redeclaration hangs":           {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: os.ErrDeadlineExceeded}, none},
		"unroutable, ConfirmTimeout":                {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: os.ErrDeadlineExceeded}, none},
		"unroutable, canceled":                      {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: context.Canceled}, none},
		"unroutable, not connected any more":        {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: fmt.Errorf("%w: %w", publish.ErrNotConnected, returned)}, none},
		"unroutable, connection lost":               {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: amqp091.ErrClosed}, none},
		"unroutable, no quorum":                     {failure.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.InternalError)}, none},
		"nacked":                                    {failure.Error{Err: publish.ErrNacked}, rejected},
		"not confirmed":                             {failure.Error{Err: publish.ErrNotConfirmed, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"not confirmed, not written":                {failure.Error{Err: publish.ErrNotConfirmed, Cause: context.Canceled, Unsent: true}, none},
		"blocked in flight":                         {failure.Error{Err: publish.ErrBlocked, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"blocked":                                   {failure.Error{Err: publish.ErrBlocked, Unsent: true}, none},
		"not connected in flight":                   {failure.Error{Err: publish.ErrNotConnected, Cause: broker(amqp091.ConnectionForced)}, unconfirmed},
		"not connected":                             {failure.Error{Err: publish.ErrNotConnected, Unsent: true}, none},
		"refused":                                   {failure.Error{Err: publish.ErrRefused, Cause: errors.New("property type")}, refused},
		"refused, no cause":                         {failure.Error{Err: publish.ErrRefused}, refused},
		"refused by Marshal":                        {failure.Error{Err: publish.ErrRefused, Cause: errors.New("no JSON")}, refused},
		"refused by the broker":                     {failure.Error{Err: publish.ErrRefused, Cause: broker(amqp091.PreconditionFailed)}, refused},
		"refused, no permission":                    {failure.Error{Err: publish.ErrRefused, Cause: broker(amqp091.AccessRefused)}, none},
		"refused, the broker's fault":               {failure.Error{Err: publish.ErrRefused, Cause: broker(amqp091.InternalError)}, none},
		"refused by Marshal for now":                {failure.Error{Err: publish.ErrRefused, Cause: fmt.Errorf("encode: %w", temporaryError(true))}, none},
		"refused by Marshal, not temporary":         {failure.Error{Err: publish.ErrRefused, Cause: temporaryError(false)}, refused},
		"refused by Marshal, in time":               {failure.Error{Err: publish.ErrRefused, Cause: fmt.Errorf("encode: %w", os.ErrDeadlineExceeded)}, none},
		"refused by Marshal, context":               {failure.Error{Err: publish.ErrRefused, Cause: context.DeadlineExceeded}, none},
		"refused by Marshal, panicking error":       {failure.Error{Err: publish.ErrRefused, Cause: panickingUnwrap{}}, refused},
		"refused, too large":                        {failure.Error{Err: publish.ErrRefused, Cause: &unpublished.TooLargeError{Text: "large"}}, unpublished.TooLarge},
		"not declared":                              {failure.Error{Err: publish.ErrNotDeclared, Cause: broker(amqp091.AccessRefused)}, none},
		"closed":                                    {failure.Error{Err: retry.ErrClosed}, closed},
	} {
		assert.Equal(t, row.want, unpublished.KindOf(&row.err), name)
	}
	all := []error{publish.ErrUnroutable, publish.ErrNacked, publish.ErrNotConfirmed, publish.ErrBlocked, publish.ErrNotConnected, publish.ErrRefused, publish.ErrNotDeclared, retry.ErrClosed}
	for _, err := range all {
		failed := failure.Error{Err: err}
		assert.Equal(t, err != publish.ErrNotDeclared, unpublished.KindOf(&failed) != none, "%v has a kind, if nothing else is known", err)
	}
}

// panickingUnwrap is an error of an app that cannot be looked into.
type panickingUnwrap struct{}

func (panickingUnwrap) Error() string { panic("no text") }
func (panickingUnwrap) Unwrap() error { panic("no cause") }

func TestErrorNamesTheMessage(t *testing.T) {
	t.Parallel()
	broker := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "no"}
	err := error(&failure.Error{Exchange: "retry", RoutingKey: "10s.orders", MessageUUID: "uuid", Err: publish.ErrRefused, Cause: broker})
	require.ErrorIs(t, err, publish.ErrRefused)
	require.NotErrorIs(t, err, publish.ErrNacked)
	var cause *amqp091.Error
	require.True(t, errors.As(err, &cause))
	require.Same(t, broker, cause)
	for _, word := range []string{`"retry"`, `"10s.orders"`, `"uuid"`, "refused", "403"} {
		assert.Contains(t, err.Error(), word)
	}

	err = &failure.Error{Err: publish.ErrNacked, RoutingKey: strings.Repeat("x", 1000)}
	require.ErrorIs(t, err, publish.ErrNacked)
	require.NotErrorIs(t, err, context.Canceled)
	assert.Less(t, len(err.Error()), 500)
}
