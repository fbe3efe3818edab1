package subscriptions

import "context"

type reportKey struct{}

// reader is what a context of Report carries.
type reader struct {
	of    *Subscription
	topic string
}

// Report returns a context with which to subscribe to a topic: what reads the topic calls Read with it.
func (s *Subscription) Report(ctx context.Context, topic string) context.Context {
	return context.WithValue(ctx, reportKey{}, reader{s, topic})
}

// Read records why the topic of a context of Report cannot be read, or with nil that it can. It does nothing with
// another context, and after the end of the context.
func Read(ctx context.Context, err error) {
	if r, found := ctx.Value(reportKey{}).(reader); found && ctx.Err() == nil {
		r.of.Read(r.topic, err)
	}
}

// Count lets the Health of a context of Report count what is not settled of its topic. The function must not wait. With
// another context, Count does nothing.
func Count(ctx context.Context, unsettled func() int) {
	if r, found := ctx.Value(reportKey{}).(reader); found {
		r.of.list.mu.Lock()
		defer r.of.list.mu.Unlock()
		r.of.unsettled = append(r.of.unsettled, unsettled)
	}
}
