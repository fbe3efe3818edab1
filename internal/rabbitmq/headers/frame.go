package headers

import (
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/retry"
)

// fieldOverhead is what a string header needs in addition to its name and value: the name's length byte, the value's type byte
// and its four bytes of length (AMQP 0-9-1, field tables).
const fieldOverhead = 6

// cuts are the keys of the failure record that Shrink may remove, in this order.
var cuts = func() []string {
	keys := retry.RecordKeys()
	slices.Reverse(keys)
	return keys
}()

// Shrink makes a publishing smaller by at least excess bytes, if its failure record is large enough: it removes the history of redrives, and
// then keys of the record, the least important first, and shortens the reason if that is enough. The message's own headers stay. So do count and
// topic, without which a message would be retried without end; a dead letter can lose them, too.
func Shrink(publishing *amqp091.Publishing, excess int) {
	if history, ok := publishing.Headers[retry.RedrivenKey].(string); ok && excess > 0 {
		delete(publishing.Headers, retry.RedrivenKey)
		excess -= len(retry.RedrivenKey) + len(history) + fieldOverhead
	}
	if text, ok := publishing.Headers[recordHeader].(string); ok {
		if r, ok := unfold(text); ok {
			excess = r.shrink(excess)
			publishing.Headers[recordHeader] = r.fold()
		}
	}
	if text, raw := publishing.Headers[rawHeader].(string); raw && excess > 0 {
		kept := strings.ToValidUTF8(text[:max(len(text)-excess, 0)], "")
		publishing.Headers[rawHeader] = kept
		excess -= len(text) - len(kept)
	}
	_, dead := publishing.Headers[retry.DeadReasonKey]
	for _, key := range cuts {
		if !dead && (key == retry.FailuresKey || key == retry.TopicKey) {
			continue
		}
		value, ok := publishing.Headers[key].(string)
		if !ok {
			continue
		}
		if excess <= 0 {
			return
		}
		if key == retry.ReasonKey && excess < len(value) {
			publishing.Headers[key] = strings.ToValidUTF8(value[:len(value)-excess], "")
			return
		}
		delete(publishing.Headers, key)
		excess -= len(key) + len(value) + fieldOverhead
	}
}

// Headroom returns how many bytes the broker may add to the headers of a copy when it dead-letters the message twice: from its
// tier, and from the work queue that it comes back to, and to its counts of deliveries. x-death, x-first-death-* and x-last-death-*
// repeat the names of exchange and queue. In a group it may dead-letter the message three times: also from the inbox of the work queue.
// groupOf returns the group of a work queue.
func Headroom(prefix naming.Prefix, groupOf func(queue string) string) func(routingKey string) int {
	dead := naming.DeadKey("")
	return func(key string) int {
		if strings.HasPrefix(key, dead) {
			return 0
		}
		names := len(prefix.RetryExchange()) + len(key)
		queue, _ := naming.QueueOfKey(key)
		group := groupOf(queue)
		if group == queue {
			return 512 + 8*names
		}
		return 768 + 12*(names+len(group))
	}
}

// countsOfDeliveries is what the broker's counts of deliveries take on RabbitMQ 4.3. Earlier versions have only the first one. Each is
// a name with its length, a type, and a number of 64 bits.
const countsOfDeliveries = 1 + len("x-delivery-count") + 1 + 8 + 1 + len("x-acquired-count") + 1 + 8

// Spare returns how many bytes the broker may add to a dead letter that its readers give back. A message whose own headers leave less
// room is a dead letter nevertheless.
func Spare(routingKey string) int {
	if strings.HasPrefix(routingKey, naming.DeadKey("")) {
		return countsOfDeliveries
	}
	return 0
}
