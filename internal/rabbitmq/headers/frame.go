package headers

import (
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// fieldOverhead is what a string header needs in addition to its name and value: the name's length byte, the value's
// type byte and its four bytes of length (AMQP 0-9-1, field tables).
const fieldOverhead = 6

// cuts are the keys of the failure record that Shrink may remove, in this order.
var cuts = func() []string {
	keys := retry.RecordKeys()
	slices.Reverse(keys)
	return keys
}()

// Fit makes a message small enough to be sent, as Shrink does. Without a connection the bound is not known, and that is
// the error of the message.
func Fit(m *publisher.Message, connection *publisher.Connection) error {
	excess, err := connection.Excess(m)
	if excess > 0 {
		Shrink(&m.Publishing, excess)
	}
	return err
}

// Shrink makes a publishing smaller by at least excess bytes, if its failure record is large enough: it removes the
// history of redrives, and then keys of the record, the least important first, and shortens the reason if that is
// enough. The message's own headers stay. So do count and topic, without which a message would be retried without end;
// a dead letter can lose them, too.
func Shrink(publishing *amqp091.Publishing, excess int) {
	if history, ok := publishing.Headers[recordkey.Redriven].(string); ok && excess > 0 {
		delete(publishing.Headers, recordkey.Redriven)
		excess -= len(recordkey.Redriven) + len(history) + fieldOverhead
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
	_, dead := publishing.Headers[recordkey.DeadReason]
	for _, key := range cuts {
		if !dead && (key == recordkey.Failures || key == recordkey.Topic) {
			continue
		}
		value, ok := publishing.Headers[key].(string)
		if !ok {
			continue
		}
		if excess <= 0 {
			return
		}
		if key == recordkey.Reason && excess < len(value) {
			publishing.Headers[key] = strings.ToValidUTF8(value[:len(value)-excess], "")
			return
		}
		delete(publishing.Headers, key)
		excess -= len(key) + len(value) + fieldOverhead
	}
}

// more headers than the broker adds
const (
	ofDeadLettering = 16 // x-death, x-first-death-*, ...
	ofDelivering    = 2
)

// RoomOnTier returns what the broker may add to the headers of a copy that waits on a tier.
//
// It may dead-letter a retry twice: from its tier, and from the work queue that it comes back to. In a group it may do
// so three times: also from the inbox of the work queue. x-death, x-first-death-* and x-last-death-* repeat the names
// of exchange and queue, and there are its counts of deliveries. group is that of the work queue, or the work queue.
func RoomOnTier(prefix naming.Prefix, queue, group, routingKey string) publisher.Room {
	names := len(prefix.RetryExchange()) + len(routingKey)
	if queue == group {
		return publisher.Room{Headers: ofDeadLettering, Bytes: 512 + 8*names}
	}
	return publisher.Room{Headers: ofDeadLettering, Bytes: 768 + 12*(names+len(group))}
}

// RoomOfDeadLetter returns what the broker adds to a dead letter that its readers give back: counts of deliveries. A
// message whose own headers leave less room is a dead letter nevertheless.
func RoomOfDeadLetter() publisher.Room {
	return publisher.Room{Headers: ofDelivering, Spare: countsOfDeliveries}
}

// countsOfDeliveries is what the broker's counts of deliveries take on RabbitMQ 4.3. Earlier versions have only the
// first one. Each is a name with its length, a type, and a number of 64 bits.
const countsOfDeliveries = 1 + len("x-delivery-count") + 1 + 8 + 1 + len("x-acquired-count") + 1 + 8
