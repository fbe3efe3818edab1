package middleware

import (
	"context"
	"fmt"

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

// TryOf names the try of a message by its topic and its handler: each further one has another name. Tries are counted
// as failures and snoozes are.
func TryOf(msg *message.Message) string {
	from := originOf(msg.Context())
	record := recordOn(from.topic, msg.Metadata)
	return fmt.Sprintf("%d %d %q %q", record.Failures, record.Snoozes, from.topic, from.handler)
}
