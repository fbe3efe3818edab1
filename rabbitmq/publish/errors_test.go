package publish

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

	"github.com/tieredretry/watermill-retry/retry"
)

func TestErrorNamesTheMessage(t *testing.T) {
	t.Parallel()
	broker := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "no"}
	err := error(&Error{Exchange: "retry", RoutingKey: "10s.orders", MessageUUID: "uuid", Err: ErrRefused, Cause: broker})
	require.ErrorIs(t, err, ErrRefused)
	require.NotErrorIs(t, err, ErrNacked)
	var cause *amqp091.Error
	require.True(t, errors.As(err, &cause))
	require.Same(t, broker, cause)
	for _, word := range []string{`"retry"`, `"10s.orders"`, `"uuid"`, "refused", "403"} {
		assert.Contains(t, err.Error(), word)
	}

	err = &Error{Err: ErrNacked, RoutingKey: strings.Repeat("x", 1000)}
	require.ErrorIs(t, err, ErrNacked)
	require.NotErrorIs(t, err, context.Canceled)
	assert.Less(t, len(err.Error()), 500)
}

// temporaryError is an error of an app, as net.Error.
type temporaryError bool

func (temporaryError) Error() string     { return "the schema registry does not answer" }
func (e temporaryError) Temporary() bool { return bool(e) }

func TestKindsOfErrors(t *testing.T) {
	t.Parallel()
	const (
		none        = retry.KindTemporary
		refused     = retry.KindRefused
		closed      = retry.KindClosed
		rejected    = retry.KindRejected
		unconfirmed = retry.KindUnconfirmed
	)
	broker := func(code int) error { return &amqp091.Error{Code: code, Server: true} }
	returned := errors.New("returned: 312 NO_ROUTE")
	for name, row := range map[string]struct {
		err  Error
		want retry.ErrorKind
	}{
		"unroutable":                                {Error{Err: ErrUnroutable, Cause: returned}, rejected},
		"unroutable, no exchange":                   {Error{Err: ErrUnroutable, Cause: broker(amqp091.NotFound)}, rejected},
		"unroutable, other arguments":               {Error{Err: ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.PreconditionFailed)}, rejected},
		"unroutable, may not declare":               {Error{Err: ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.AccessRefused)}, rejected},
		"unroutable, the app's redeclaration fails": {Error{Err: ErrUnroutable, Cause: returned, Redeclare: errors.New("no")}, rejected},
		"unroutable, redeclaration hangs":           {Error{Err: ErrUnroutable, Cause: returned, Redeclare: os.ErrDeadlineExceeded}, none},
		"unroutable, ConfirmTimeout":                {Error{Err: ErrUnroutable, Cause: returned, Redeclare: os.ErrDeadlineExceeded}, none},
		"unroutable, canceled":                      {Error{Err: ErrUnroutable, Cause: returned, Redeclare: context.Canceled}, none},
		"unroutable, not connected any more":        {Error{Err: ErrUnroutable, Cause: returned, Redeclare: fmt.Errorf("%w: %w", ErrNotConnected, returned)}, none},
		"unroutable, connection lost":               {Error{Err: ErrUnroutable, Cause: returned, Redeclare: amqp091.ErrClosed}, none},
		"unroutable, no quorum":                     {Error{Err: ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.InternalError)}, none},
		"nacked":                                    {Error{Err: ErrNacked}, rejected},
		"not confirmed":                             {Error{Err: ErrNotConfirmed, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"not confirmed, not written":                {Error{Err: ErrNotConfirmed, Cause: context.Canceled, Unsent: true}, none},
		"blocked in flight":                         {Error{Err: ErrBlocked, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"blocked":                                   {Error{Err: ErrBlocked, Unsent: true}, none},
		"not connected in flight":                   {Error{Err: ErrNotConnected, Cause: broker(amqp091.ConnectionForced)}, unconfirmed},
		"not connected":                             {Error{Err: ErrNotConnected, Unsent: true}, none},
		"stalled":                                   {Error{Err: ErrStalled, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"stalled, no slot":                          {Error{Err: ErrStalled, Cause: os.ErrDeadlineExceeded, Unsent: true}, none},
		"refused":                                   {Error{Err: ErrRefused, Cause: errors.New("property type")}, refused},
		"refused, no cause":                         {Error{Err: ErrRefused}, refused},
		"refused by Marshal":                        {Error{Err: ErrRefused, Cause: errors.New("no JSON")}, refused},
		"refused by the broker":                     {Error{Err: ErrRefused, Cause: broker(amqp091.PreconditionFailed)}, refused},
		"refused, no permission":                    {Error{Err: ErrRefused, Cause: broker(amqp091.AccessRefused)}, none},
		"refused, the broker's fault":               {Error{Err: ErrRefused, Cause: broker(amqp091.InternalError)}, none},
		"refused by Marshal for now":                {Error{Err: ErrRefused, Cause: fmt.Errorf("encode: %w", temporaryError(true))}, none},
		"refused by Marshal, not temporary":         {Error{Err: ErrRefused, Cause: temporaryError(false)}, refused},
		"refused by Marshal, in time":               {Error{Err: ErrRefused, Cause: fmt.Errorf("encode: %w", os.ErrDeadlineExceeded)}, none},
		"refused by Marshal, context":               {Error{Err: ErrRefused, Cause: context.DeadlineExceeded}, none},
		"refused by Marshal, panicking error":       {Error{Err: ErrRefused, Cause: panickingUnwrap{}}, refused},
		"refused, too large":                        {Error{Err: ErrRefused, Cause: &TooLargeError{"large"}}, retry.KindTooLarge},
		"not declared":                              {Error{Err: ErrNotDeclared, Cause: broker(amqp091.AccessRefused)}, none},
		"closed":                                    {Error{Err: retry.ErrClosed}, closed},
	} {
		assert.Equal(t, row.want, row.err.Kind(), name)
	}
	all := []error{ErrUnroutable, ErrNacked, ErrNotConfirmed, ErrBlocked, ErrNotConnected, ErrStalled, ErrRefused, ErrNotDeclared, retry.ErrClosed}
	for _, err := range all {
		failed := Error{Err: err}
		assert.Equal(t, err != ErrNotDeclared, failed.Kind() != none, "%v has a kind, if nothing else is known", err)
	}
}

// panickingUnwrap is an error of an app that cannot be looked into.
type panickingUnwrap struct{}

func (panickingUnwrap) Error() string { panic("no text") }
func (panickingUnwrap) Unwrap() error { panic("no cause") }
