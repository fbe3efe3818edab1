package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// origin is where a message failed first: the topic and the handler its record counts on, and the subscriber's Go type.
type origin struct{ topic, handler, subscriber string }

func originOf(ctx context.Context) (o origin) {
	if from, found := msgctx.OriginOf(ctx); found {
		o.topic, o.handler = from.Topic, from.Handler
	} else {
		o.topic, o.handler = message.SubscribeTopicFromCtx(ctx), message.HandlerNameFromCtx(ctx)
	}
	o.subscriber = message.SubscriberNameFromCtx(ctx)
	return o
}

// handlerOf is the handler of originOf, for less.
func handlerOf(ctx context.Context) string {
	if from, found := msgctx.OriginOf(ctx); found {
		return from.Handler
	}
	return message.HandlerNameFromCtx(ctx)
}
