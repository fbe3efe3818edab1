package rabbitmq

import (
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

// recordCuts is in which order the record gives way where a message's own headers nearly fill a frame.
var recordCuts = []string{
	delay.DelayedForKey, delay.DelayedUntilKey, // mean nothing to RabbitMQ
	"reason_poisoned", middleware.ReasonKey, "subscriber_poisoned", "handler_poisoned", "topic_poisoned",
	middleware.ErrorTypeKey, middleware.HandlerKey, middleware.FirstFailedAtKey, middleware.LastFailedAtKey,
	middleware.DueAtKey,
}

// deadCuts go on with what only a dead letter can do without: a message without count and topic would be retried for ever.
var deadCuts = append(slices.Clone(recordCuts), middleware.TopicKey, middleware.FailuresKey, middleware.DeadReasonKey)

// shrink cuts the record, never the message: the reason to what fits, then whole keys.
func shrink(publishing *amqp091.Publishing, excess int) {
	cuts := recordCuts
	if _, dead := publishing.Headers[middleware.DeadReasonKey]; dead {
		cuts = deadCuts
	}
	for _, key := range cuts {
		text, ok := publishing.Headers[key].(string)
		if !ok {
			continue
		}
		if excess <= 0 {
			return
		}
		if key == middleware.ReasonKey && excess < len(text) {
			publishing.Headers[key] = strings.ToValidUTF8(text[:len(text)-excess], "")
			return
		}
		delete(publishing.Headers, key)
		excess -= len(key) + len(text) + 6 // a key's length byte, the value's type byte and its four bytes of length
	}
}

// headroom is what the broker's own headers may take when it dead-letters a message twice, from its tier and from the work queue
// to which it comes back: x-death, x-first-death-*, x-last-death-* and delivery counts, which hold the names again and again.
func headroom(prefix naming.Prefix) func(routingKey string) int {
	dead := naming.DeadKey("")
	return func(key string) int {
		if strings.HasPrefix(key, dead) {
			return 0
		}
		return 512 + 8*(len(prefix.RetryExchange())+len(key))
	}
}
