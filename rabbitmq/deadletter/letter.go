package deadletter

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// read returns the letter of a delivery from a queue. The name of the queue decides the target of a letter, and for
// an orphan the routing key, because any publisher can write headers. Only the letters of a PoisonQueue name their
// target themselves: nothing else does.
func read(d *amqp091.Delivery, queue string, prefix naming.Prefix) *letters.Letter {
	record := headers.RecordOf(d.Headers)
	l := &letters.Letter{Queue: queue, Payload: d.Body}
	l.Redriven, _ = letters.ReadRedriven(record)
	if work, dead := strings.CutSuffix(queue, naming.DeadQueue("")); dead {
		l.Target = work
	}
	death, byBroker := headers.NewestDeath(d.Headers)
	poisoned, isPoison := record[poison.ReasonForPoisonedKey]
	l.Record, _ = retry.ReadRecord(record)
	switch {
	case queue == prefix.Orphans():
		l.Kind = letters.Orphan
		l.Target = targetOfOrphan(d.RoutingKey, queue)
	case byBroker: // a tier that dead-letters, too: the middleware publishes without x-death
		l.Kind = letters.Broker
		l.Record = headers.RecordOfDeath(record, death)
	case record[recordkey.DeadReason] != "":
		l.Kind = letters.Library
		if reason := headers.RawReason(d.Headers); reason != "" && l.Record.LeftOff == "" {
			l.Record.LeftOff = "the encoding of the body: " + reason
		}
	case isPoison:
		l.Kind = letters.Poison
		l.Record.Reason, l.Record.Topic = poisoned, record[poison.PoisonedTopicKey]
		l.Record.Handler, l.Record.Subscriber = record[poison.PoisonedHandlerKey], record[poison.PoisonedSubscriberKey]
		l.Record.ErrorType, l.Record.DueAt, l.Record.Remaining = "", time.Time{}, 0
		l.Target = cmp.Or(l.Target, l.Record.Topic)
	default:
		l.Kind = letters.Unknown
	}
	was := original(d, prefix)
	l.Metadata, l.Headers = message.Metadata{}, map[string]any{}
	for key, value := range was.Headers {
		switch text, isText := value.(string); {
		case !isText:
			l.Headers[key] = value
		case key == publisher.UUIDHeader:
			delete(was.Headers, key)
		default:
			l.Metadata[key] = text
		}
	}
	l.Properties = properties(d, &was, l, prefix)
	l.ID = id(d, was.Headers)
	return l
}

// original returns the message of a letter as it was first published. Only a letter of the middleware is trusted: it
// comes through the exchange of the copies, and the broker has not dead-lettered it.
func original(d *amqp091.Delivery, prefix naming.Prefix) amqp091.Delivery {
	_, byBroker := d.Headers["x-death"]
	ours := d.Exchange == prefix.RetryExchange() && naming.IsDeadKey(d.RoutingKey)
	return headers.Original(d, ours && !byBroker)
}

// targetOfOrphan returns the work queue of a routing key <tier>.<queue>, or "" where the orphan has lost it: its copy
// was published to the queue of the orphans by name.
func targetOfOrphan(key, orphans string) string {
	if key == orphans {
		return ""
	}
	target, _ := naming.QueueOfKey(key)
	return target
}

// properties returns those that the message was first published with.
func properties(d, was *amqp091.Delivery, l *letters.Letter, prefix naming.Prefix) map[string]string {
	exchange, key := was.Exchange, was.RoutingKey
	if exchange == "" {
		exchange, key = published(d, l, prefix)
	}
	named := map[string]string{"exchange": exchange, "routing_key": key}
	for name, property := range texts(was) {
		named[name] = *property
	}
	maps.DeleteFunc(named, func(_, value string) bool { return value == "" })
	if was.Priority != 0 {
		named["priority"] = strconv.Itoa(int(was.Priority))
	}
	if d.DeliveryMode != 0 {
		named["delivery_mode"] = strconv.Itoa(int(d.DeliveryMode))
	}
	if !d.Timestamp.IsZero() {
		named["timestamp"] = d.Timestamp.UTC().Format(time.RFC3339)
	}
	return named
}

// published returns the exchange and routing key that a message without headers of them was first published with.
func published(d *amqp091.Delivery, l *letters.Letter, prefix naming.Prefix) (exchange, key string) {
	switch l.Kind {
	case letters.Library, letters.Orphan: // the middleware leaves them out for the default exchange
		return "", l.Target
	case letters.Broker:
		death, _ := headers.NewestDeath(d.Headers)
		exchange, _ = death["exchange"].(string)
		if keys, _ := death["routing-keys"].([]any); len(keys) > 0 {
			key, _ = keys[0].(string)
		}
		if prefix.IsReturn(exchange) || exchange == prefix.AnyReturnExchange() || // it came from a tier
			exchange == naming.OrderExchange(l.Target) { // or from a partition
			return "", l.Target
		}
		return exchange, key
	}
	return d.Exchange, d.RoutingKey
}

// id returns the UUID, or else the message-id, or else a hash of what stays the same while the message dies again and
// again.
func id(d *amqp091.Delivery, app amqp091.Table) string {
	uuid, _ := d.Headers[publisher.UUIDHeader].(string)
	if id := cmp.Or(uuid, d.MessageId); id != "" {
		return id
	}
	sum := sha256.Sum256(headers.AppendValue(headers.AppendValue(nil, app), d.Body))
	return "#" + hex.EncodeToString(sum[:8])
}
