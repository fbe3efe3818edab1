package users

import "context"

// A Lifetime is the calls of what can be closed.
type Lifetime struct {
	calls  Count
	ctx    context.Context
	end    context.CancelFunc
	closed error // the error of a call that Close ends, or that comes later
}

// NewLifetime returns a Lifetime with this error.
func NewLifetime(closed error) *Lifetime {
	l := &Lifetime{closed: closed}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// Use returns a context that Close ends, too, and the function that ends it. Close does not wait for that.
func (l *Lifetime) Use(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(l.closed) })
	return ctx, func() { stop(); cancel(nil) }
}

// Begin is Use for a call that Close waits for.
func (l *Lifetime) Begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if !l.calls.Enter() {
		return nil, nil, l.closed
	}
	ctx, release := l.Use(ctx)
	return ctx, func() { release(); l.calls.Leave() }, nil
}

// Closed returns the error of a closed one.
func (l *Lifetime) Closed() error {
	if l.ctx.Err() != nil {
		return l.closed
	}
	return nil
}

// Close ends all calls, and waits for those of Begin. It may be called several times.
func (l *Lifetime) Close() {
	idle := l.calls.Close()
	l.end()
	<-idle
}
