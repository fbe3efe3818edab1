package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

type originKey struct{}

// origin is where a message failed first: the topic and the handler its record counts on, and the subscriber's Go type.
type origin struct{ topic, handler, subscriber string }

// WithOrigin returns a context for a message that came back by way of a return topic. Topic and handler are where it
// failed first; without it they are those of the router's context. Package relay sets it.
func WithOrigin(ctx context.Context, topic, handler string) context.Context {
	return context.WithValue(ctx, originKey{}, origin{topic: topic, handler: handler})
}

func originOf(ctx context.Context) origin {
	o, ok := ctx.Value(originKey{}).(origin)
	if !ok {
		o = origin{topic: message.SubscribeTopicFromCtx(ctx), handler: message.HandlerNameFromCtx(ctx)}
	}
	o.subscriber = message.SubscriberNameFromCtx(ctx)
	return o
}

// handlerOf is the handler of originOf, for less.
func handlerOf(ctx context.Context) string {
	if o, ok := ctx.Value(originKey{}).(origin); ok {
		return o.handler
	}
	return message.HandlerNameFromCtx(ctx)
}
