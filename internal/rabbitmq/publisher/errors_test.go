package publisher

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
)

func TestPublishError(t *testing.T) {
	t.Parallel()
	broker := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "no"}
	err := error(&PublishError{Exchange: "retry", RoutingKey: "10s.orders", MessageUUID: "uuid", Err: ErrRefused, Cause: broker})
	require.ErrorIs(t, err, ErrRefused)
	require.NotErrorIs(t, err, ErrNacked)
	var cause *amqp091.Error
	require.True(t, errors.As(err, &cause))
	require.Same(t, broker, cause)
	for _, word := range []string{`"retry"`, `"10s.orders"`, `"uuid"`, "refused", "403"} {
		assert.Contains(t, err.Error(), word)
	}

	err = &PublishError{Err: ErrNacked, RoutingKey: strings.Repeat("x", 1000)}
	require.ErrorIs(t, err, ErrNacked)
	require.NotErrorIs(t, err, context.Canceled)
	assert.Less(t, len(err.Error()), 500)
}

// A class is what the methods of an error report.
type class struct{ refused, closed, rejected, unconfirmed, tooLarge bool }

// classify asks as package middleware does, which does not import this package.
func classify(err error) (c class) {
	var refused interface{ Refused() bool }
	var closed interface{ Closed() bool }
	var rejected interface{ Rejected() bool }
	var unconfirmed interface{ Unconfirmed() bool }
	var tooLarge interface{ TooLarge() bool }
	c.refused = errors.As(err, &refused) && refused.Refused()
	c.closed = errors.As(err, &closed) && closed.Closed()
	c.rejected = errors.As(err, &rejected) && rejected.Rejected()
	c.unconfirmed = errors.As(err, &unconfirmed) && unconfirmed.Unconfirmed()
	c.tooLarge = errors.As(err, &tooLarge) && tooLarge.TooLarge()
	return c
}

// temporaryError is an error of an app, as net.Error.
type temporaryError bool

func (temporaryError) Error() string     { return "the schema registry does not answer" }
func (e temporaryError) Temporary() bool { return bool(e) }

func TestClassesOfErrors(t *testing.T) {
	t.Parallel()
	var (
		none        = class{}
		refused     = class{refused: true}
		closed      = class{closed: true}
		rejected    = class{rejected: true}
		unconfirmed = class{unconfirmed: true}
	)
	broker := func(code int) error { return &amqp091.Error{Code: code, Server: true} }
	returned := errors.New("returned: 312 NO_ROUTE")
	redeclared := func(err error) error { return &redeclareError{returned, err} }
	for name, row := range map[string]struct {
		err  PublishError
		want class
	}{
		"unroutable":                                {PublishError{Err: ErrUnroutable, Cause: returned}, rejected},
		"unroutable, no exchange":                   {PublishError{Err: ErrUnroutable, Cause: broker(amqp091.NotFound)}, rejected},
		"unroutable, other arguments":               {PublishError{Err: ErrUnroutable, Cause: redeclared(broker(amqp091.PreconditionFailed))}, rejected},
		"unroutable, may not declare":               {PublishError{Err: ErrUnroutable, Cause: redeclared(broker(amqp091.AccessRefused))}, rejected},
		"unroutable, the app's redeclaration fails": {PublishError{Err: ErrUnroutable, Cause: redeclared(errors.New("no"))}, rejected},
		"unroutable, redeclaration hangs":           {PublishError{Err: ErrUnroutable, Cause: redeclared(timeoutError("slow"))}, none},
		"unroutable, ConfirmTimeout":                {PublishError{Err: ErrUnroutable, Cause: redeclared(errDeadline)}, none},
		"unroutable, canceled":                      {PublishError{Err: ErrUnroutable, Cause: redeclared(context.Canceled)}, none},
		"unroutable, not connected any more":        {PublishError{Err: ErrUnroutable, Cause: redeclared(fmt.Errorf("%w: %w", ErrNotConnected, returned))}, none},
		"unroutable, connection lost":               {PublishError{Err: ErrUnroutable, Cause: redeclared(amqp091.ErrClosed)}, none},
		"unroutable, no quorum":                     {PublishError{Err: ErrUnroutable, Cause: redeclared(broker(amqp091.InternalError))}, none},
		"nacked":                                    {PublishError{Err: ErrNacked}, rejected},
		"not confirmed":                             {PublishError{Err: ErrNotConfirmed, Cause: errDeadline}, unconfirmed},
		"not confirmed, not written":                {PublishError{Err: ErrNotConfirmed, Cause: context.Canceled, unsent: true}, none},
		"blocked in flight":                         {PublishError{Err: ErrBlocked, Cause: errDeadline}, unconfirmed},
		"blocked":                                   {PublishError{Err: ErrBlocked, unsent: true}, none},
		"not connected in flight":                   {PublishError{Err: ErrNotConnected, Cause: broker(amqp091.ConnectionForced)}, unconfirmed},
		"not connected":                             {PublishError{Err: ErrNotConnected, unsent: true}, none},
		"stalled":                                   {PublishError{Err: ErrStalled, Cause: errDeadline}, unconfirmed},
		"stalled, no slot":                          {PublishError{Err: ErrStalled, Cause: errDeadline, unsent: true}, none},
		"refused":                                   {PublishError{Err: ErrRefused, Cause: tooLong("property type", "x")}, refused},
		"refused, no cause":                         {PublishError{Err: ErrRefused}, refused},
		"refused by Marshal":                        {PublishError{Err: ErrRefused, Cause: errors.New("no JSON")}, refused},
		"refused by the broker":                     {PublishError{Err: ErrRefused, Cause: broker(amqp091.PreconditionFailed)}, refused},
		"refused, no permission":                    {PublishError{Err: ErrRefused, Cause: broker(amqp091.AccessRefused)}, none},
		"refused, the broker's fault":               {PublishError{Err: ErrRefused, Cause: broker(amqp091.InternalError)}, none},
		"refused by Marshal for now":                {PublishError{Err: ErrRefused, Cause: fmt.Errorf("encode: %w", temporaryError(true))}, none},
		"refused by Marshal, not temporary":         {PublishError{Err: ErrRefused, Cause: temporaryError(false)}, refused},
		"refused by Marshal, in time":               {PublishError{Err: ErrRefused, Cause: fmt.Errorf("encode: %w", os.ErrDeadlineExceeded)}, none},
		"refused by Marshal, context":               {PublishError{Err: ErrRefused, Cause: context.DeadlineExceeded}, none},
		"refused by Marshal, panicking error":       {PublishError{Err: ErrRefused, Cause: panickingUnwrap{}}, refused},
		"refused, too large":                        {PublishError{Err: ErrRefused, Cause: errTooLarge{"large"}}, class{refused: true, tooLarge: true}},
		"not declared":                              {PublishError{Err: ErrNotDeclared, Cause: broker(amqp091.AccessRefused)}, none},
		"closed":                                    {PublishError{Err: ErrClosed}, closed},
	} {
		assert.Equal(t, row.want, classify(fmt.Errorf("wrapped: %w", &row.err)), name)
	}
	all := []error{ErrUnroutable, ErrNacked, ErrNotConfirmed, ErrBlocked, ErrNotConnected, ErrStalled, ErrRefused, ErrNotDeclared, ErrClosed}
	for _, err := range all {
		c := classify(&PublishError{Err: err})
		assert.Equal(t, err != ErrNotDeclared, c != none, "%v has a class, if nothing else is known", err)
	}
}

// panickingUnwrap is an error of an app that cannot be looked into.
type panickingUnwrap struct{}

func (panickingUnwrap) Error() string { panic("no text") }
func (panickingUnwrap) Unwrap() error { panic("no cause") }

func TestClassOfSeveralErrors(t *testing.T) {
	t.Parallel()
	var (
		refused     = &PublishError{Err: ErrRefused}
		tooLarge    = &PublishError{Err: ErrRefused, Cause: errTooLarge{"large"}}
		closed      = &PublishError{Err: ErrClosed}
		nacked      = &PublishError{Err: ErrNacked}
		unconfirmed = &PublishError{Err: ErrNotConfirmed}
		blocked     = &PublishError{Err: ErrBlocked, unsent: true}
	)
	for name, row := range map[string]struct {
		errs []error
		want class
	}{
		"all refused":         {[]error{refused, tooLarge}, class{refused: true}},
		"all too large":       {[]error{tooLarge, tooLarge}, class{refused: true, tooLarge: true}},
		"one refused":         {[]error{refused, blocked}, class{}},
		"all rejected":        {[]error{nacked, nacked}, class{rejected: true}},
		"one rejected":        {[]error{nacked, blocked}, class{}},
		"one may have come":   {[]error{nacked, unconfirmed}, class{unconfirmed: true}},
		"one found it closed": {[]error{blocked, closed}, class{closed: true}},
	} {
		err := joinFailures(row.errs)
		assert.Equal(t, row.want, classify(err), name)
		for _, one := range row.errs {
			assert.ErrorIs(t, err, one, name)
			assert.ErrorContains(t, err, one.Error(), name)
		}
	}
	assert.NoError(t, joinFailures(nil))
	assert.Same(t, nacked, joinFailures([]error{nacked}))
}
