// Package eventtest makes observers of functions, and middlewares, for tests.
package eventtest

import (
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// OnEvent returns an observer that calls a function for each outcome.
func OnEvent(f func(retry.Event)) retry.Observer { return onEvent{call: f} }

type onEvent struct {
	call func(retry.Event)
}

func (o onEvent) Event(e retry.Event) { o.call(e) }

// Observers returns observers of which one calls a function for each outcome.
func Observers(f func(retry.Event)) *backend.Observers {
	observers := &backend.Observers{}
	observers.Attach(OnEvent(f), backend.Observed{})
	return observers
}
