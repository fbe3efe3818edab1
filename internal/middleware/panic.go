package middleware

import (
	"errors"

	recoverer "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

// recoveredPanic is the failure of a handler whose panic Watermill's Recoverer has made an error, inside of the retry
// middleware.
type recoveredPanic struct {
	*retry.PanicError       // as without the Recoverer
	returned          error // what the middlewares inside have returned
}

// Unwrap has both: a middleware may have marked what it returned as permanent.
func (e recoveredPanic) Unwrap() []error { return []error{e.PanicError, e.returned} }

// panicOf returns the panic that an error reports, and the error as it is without a Recoverer. It returns nil where
// it reports none.
func panicOf(err error) (panicked *retry.PanicError, as error) {
	var recovered recoverer.RecoveredPanicError
	is := false
	ask := func() { is = !errors.As(err, &panicked) && errors.As(err, &recovered) }
	if panics.Call(ask) != nil { // a method of the error
		return nil, err
	}
	if !is {
		return panicked, err
	}
	panicked = &retry.PanicError{Value: recovered.V, Stack: []byte(recovered.Stacktrace),
		Place: panics.PlaceIn(recovered.Stacktrace)}
	return panicked, recoveredPanic{panicked, err}
}
