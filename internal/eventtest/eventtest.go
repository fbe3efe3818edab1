// Package eventtest makes observers of functions, for tests.
package eventtest

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// OnEvent returns an observer that calls a function for each outcome.
func OnEvent(f func(retry.Event)) retry.Observer { return Hooks{OnEvent: f} }

// Observers returns the observers of a middleware without a connection, with one that calls a function for each
// outcome.
func Observers(f func(retry.Event)) *backend.Observers {
	observers := &backend.Observers{}
	observers.Attach(OnEvent(f), retry.Observed{})
	return observers
}

// Hooks is an observer that calls the functions that are set.
type Hooks struct {
	OnAttach      func(retry.Observed) (retry.Observer, error)
	OnBegin       func(retry.Event) context.Context
	OnEvent       func(retry.Event)
	OnProduced    func(ctx context.Context, produced []*message.Message)
	OnTraceparent func(ctx context.Context) string
	OnLogFields   func(ctx context.Context) watermill.LogFields
	OnPublished   func(retry.Published)
}

func (h Hooks) Attach(o retry.Observed) (retry.Observer, error) {
	if h.OnAttach == nil {
		return nil, nil
	}
	return h.OnAttach(o)
}

func (h Hooks) Begin(a retry.Event) context.Context {
	if h.OnBegin == nil {
		return nil
	}
	return h.OnBegin(a)
}

func (h Hooks) Event(e retry.Event) {
	if h.OnEvent != nil {
		h.OnEvent(e)
	}
}

func (h Hooks) Produced(ctx context.Context, produced []*message.Message) {
	if h.OnProduced != nil {
		h.OnProduced(ctx, produced)
	}
}

func (h Hooks) Traceparent(ctx context.Context) string {
	if h.OnTraceparent == nil {
		return ""
	}
	return h.OnTraceparent(ctx)
}

func (h Hooks) LogFields(ctx context.Context) watermill.LogFields {
	if h.OnLogFields == nil {
		return nil
	}
	return h.OnLogFields(ctx)
}

func (h Hooks) Published(p retry.Published) {
	if h.OnPublished != nil {
		h.OnPublished(p)
	}
}
