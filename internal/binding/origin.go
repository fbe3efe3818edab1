package binding

import "context"

type originKey struct{}

// Origin is where a message failed first.
type Origin struct{ Topic, Handler string }

// WithOrigin returns a context for a message that came back by way of a return topic. Topic and handler are where it
// failed first; without it they are those of the router's context. Package relay sets it.
func WithOrigin(ctx context.Context, topic, handler string) context.Context {
	return context.WithValue(ctx, originKey{}, Origin{Topic: topic, Handler: handler})
}

// OriginOf returns what WithOrigin has set.
func OriginOf(ctx context.Context) (o Origin, found bool) {
	o, found = ctx.Value(originKey{}).(Origin)
	return o, found
}
