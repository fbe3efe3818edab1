package publish_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

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
		err  publish.Error
		want unpublished.Kind
	}{
		"unroutable":                                {publish.Error{Err: publish.ErrUnroutable, Cause: returned}, rejected},
		"unroutable, no exchange":                   {publish.Error{Err: publish.ErrUnroutable, Cause: broker(amqp091.NotFound)}, rejected},
		"unroutable, other arguments":               {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.PreconditionFailed)}, rejected},
		"unroutable, may not declare":               {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.AccessRefused)}, rejected},
		"unroutable, the app's redeclaration fails": {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: errors.New("no")}, rejected},
		"unroutable, redeclaration hangs":           {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: os.ErrDeadlineExceeded}, none},
		"unroutable, ConfirmTimeout":                {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: os.ErrDeadlineExceeded}, none},
		"unroutable, canceled":                      {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: context.Canceled}, none},
		"unroutable, not connected any more":        {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: fmt.Errorf("%w: %w", publish.ErrNotConnected, returned)}, none},
		"unroutable, connection lost":               {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: amqp091.ErrClosed}, none},
		"unroutable, no quorum":                     {publish.Error{Err: publish.ErrUnroutable, Cause: returned, Redeclare: broker(amqp091.InternalError)}, none},
		"nacked":                                    {publish.Error{Err: publish.ErrNacked}, rejected},
		"not confirmed":                             {publish.Error{Err: publish.ErrNotConfirmed, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"not confirmed, not written":                {publish.Error{Err: publish.ErrNotConfirmed, Cause: context.Canceled, Unsent: true}, none},
		"blocked in flight":                         {publish.Error{Err: publish.ErrBlocked, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"blocked":                                   {publish.Error{Err: publish.ErrBlocked, Unsent: true}, none},
		"not connected in flight":                   {publish.Error{Err: publish.ErrNotConnected, Cause: broker(amqp091.ConnectionForced)}, unconfirmed},
		"not connected":                             {publish.Error{Err: publish.ErrNotConnected, Unsent: true}, none},
		"stalled":                                   {publish.Error{Err: publish.ErrStalled, Cause: os.ErrDeadlineExceeded}, unconfirmed},
		"stalled, no slot":                          {publish.Error{Err: publish.ErrStalled, Cause: os.ErrDeadlineExceeded, Unsent: true}, none},
		"refused":                                   {publish.Error{Err: publish.ErrRefused, Cause: errors.New("property type")}, refused},
		"refused, no cause":                         {publish.Error{Err: publish.ErrRefused}, refused},
		"refused by Marshal":                        {publish.Error{Err: publish.ErrRefused, Cause: errors.New("no JSON")}, refused},
		"refused by the broker":                     {publish.Error{Err: publish.ErrRefused, Cause: broker(amqp091.PreconditionFailed)}, refused},
		"refused, no permission":                    {publish.Error{Err: publish.ErrRefused, Cause: broker(amqp091.AccessRefused)}, none},
		"refused, the broker's fault":               {publish.Error{Err: publish.ErrRefused, Cause: broker(amqp091.InternalError)}, none},
		"refused by Marshal for now":                {publish.Error{Err: publish.ErrRefused, Cause: fmt.Errorf("encode: %w", temporaryError(true))}, none},
		"refused by Marshal, not temporary":         {publish.Error{Err: publish.ErrRefused, Cause: temporaryError(false)}, refused},
		"refused by Marshal, in time":               {publish.Error{Err: publish.ErrRefused, Cause: fmt.Errorf("encode: %w", os.ErrDeadlineExceeded)}, none},
		"refused by Marshal, context":               {publish.Error{Err: publish.ErrRefused, Cause: context.DeadlineExceeded}, none},
		"refused by Marshal, panicking error":       {publish.Error{Err: publish.ErrRefused, Cause: panickingUnwrap{}}, refused},
		"refused, too large":                        {publish.Error{Err: publish.ErrRefused, Cause: &unpublished.TooLargeError{Text: "large"}}, unpublished.TooLarge},
		"not declared":                              {publish.Error{Err: publish.ErrNotDeclared, Cause: broker(amqp091.AccessRefused)}, none},
		"closed":                                    {publish.Error{Err: retry.ErrClosed}, closed},
	} {
		assert.Equal(t, row.want, unpublished.KindOf(&row.err), name)
	}
	all := []error{publish.ErrUnroutable, publish.ErrNacked, publish.ErrNotConfirmed, publish.ErrBlocked, publish.ErrNotConnected, publish.ErrStalled, publish.ErrRefused, publish.ErrNotDeclared, retry.ErrClosed}
	for _, err := range all {
		failed := publish.Error{Err: err}
		assert.Equal(t, err != publish.ErrNotDeclared, unpublished.KindOf(&failed) != none, "%v has a kind, if nothing else is known", err)
	}
}

// panickingUnwrap is an error of an app that cannot be looked into.
type panickingUnwrap struct{}

func (panickingUnwrap) Error() string { panic("no text") }
func (panickingUnwrap) Unwrap() error { panic("no cause") }
