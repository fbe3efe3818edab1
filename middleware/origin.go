package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

type originKey struct{}

// origin is where a message failed first: the topic and the handler its record counts on.
type origin struct{ topic, handler string }

// WithOrigin tells the middleware that the message of this context came back by way of a return topic, and on which topic and
// in which handler it originally failed. Without it both are those of the router's context. Package relay sets it.
func WithOrigin(ctx context.Context, topic, handler string) context.Context {
	return context.WithValue(ctx, originKey{}, origin{topic, handler})
}

func originOf(ctx context.Context) origin {
	if o, ok := ctx.Value(originKey{}).(origin); ok {
		return o
	}
	return origin{message.SubscribeTopicFromCtx(ctx), message.HandlerNameFromCtx(ctx)}
}
