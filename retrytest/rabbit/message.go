package rabbit

import (
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Message is a message that lies in a queue.
type Message struct {
	// Publishing has the body, the headers and the properties.
	amqp091.Publishing

	// Exchange and RoutingKey are those with which it came to the queue. Of a dead letter they are those of the queue
	// in which it died.
	Exchange, RoutingKey string

	// Expires is when the queue drops or dead-letters it. Zero: never.
	Expires time.Time

	// Redelivered: it was delivered before.
	Redelivered bool

	// Unacknowledged: a consumer has it.
	Unacknowledged bool
}

// Death is an entry of the header x-death: how often a message left a queue, and why.
type Death struct {
	Queue, Exchange string
	Reason          string // "expired", "rejected", "maxlen" or "delivery_limit"
	RoutingKeys     []string
	Count           int64
	Time            time.Time // the time of the first death, in whole seconds
}

// Messages returns the messages of a queue: first those that wait, the next one first, then those that consumers have.
// It changes nothing.
func (b *Broker) Messages(queue string) (all []Message) {
	b.t.Helper()
	b.mustExist("Messages", queue)
	for _, m := range b.model.Messages(queue) {
		all = append(all, Message(m))
	}
	return all
}

// Deaths returns the entries of the header x-death, the last one first.
func (m Message) Deaths() (all []Death) {
	entries, _ := m.Headers["x-death"].([]any)
	for _, each := range entries {
		entry, _ := each.(amqp091.Table)
		text := func(key string) string {
			s, _ := entry[key].(string)
			return s
		}
		d := Death{Queue: text("queue"), Exchange: text("exchange"), Reason: text("reason")}
		d.Count, _ = entry["count"].(int64)
		d.Time, _ = entry["time"].(time.Time)
		keys, _ := entry["routing-keys"].([]any)
		for _, key := range keys {
			d.RoutingKeys = append(d.RoutingKeys, fmt.Sprint(key))
		}
		all = append(all, d)
	}
	return all
}
