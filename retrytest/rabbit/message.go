package rabbit

import (
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Message is a message that lies in a queue.
type Message struct {
	// Publishing has the body, the headers and the properties. The header x-death has how often the message left a queue,
	// and why.
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
