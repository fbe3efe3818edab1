package subscriber

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A Handler is whom a Subscriber consumes for. Its methods are called by several goroutines at the same time. A panic
// in one of them counts as an error.
type Handler interface {
	// QueueOf returns the name of the queue that a topic's messages are consumed from.
	QueueOf(topic string) (string, error)

	// Declare declares what consuming a topic needs, such as its queue. It is called before the topic is consumed for
	// the first time, and again before it is consumed again: after each reconnect, and after the broker has cancelled
	// the consumer. In the last case it is called once more when the queue is consumed again. It may remember what it
	// has declared on a connection; see Declaration. The first Subscribe returns its error. Later errors are logged,
	// and Declare is called again after a pause; see Open.
	Declare(declaration *Declaration, topic string) error

	// Bind binds the topic's queue, which Declare has declared. It is called when a consumer of the queue has begun, also
	// after a pause: another client may have replaced the queue before, and it has no bindings then. After an error,
	// Declare is called.
	Bind(declaration *Declaration, topic string) error

	// MayBeQuorum reports whether a queue is a quorum queue, or its type is not known. It calls no function of the app.
	// It is called after Declare, and only on RabbitMQ 3.10 and 3.11: there a quorum queue that is deleted and declared
	// anew within milliseconds may move its consumers to the new queue, where they get no message. A prefetch for the
	// whole channel (global) makes the broker cancel them. It limits nothing, and costs the broker processor time, on a
	// classic queue more.
	MayBeQuorum(queue string) bool

	// Unmarshal converts a delivery to a message of message.NewMessage. When it returns an error, the error is logged
	// and the delivery is nacked after the pause of NackInitial. One goroutine for each Subscribe call unmarshals its
	// messages.
	Unmarshal(delivery amqp091.Delivery) (*message.Message, error)

	// Nacked is called when a message was nacked, before the pause. The message may have been changed by its handler;
	// the delivery has it as it was. If Nacked returns true, the message is acked, because Nacked has taken care of it.
	// It may block: the message takes one place of Prefetch meanwhile, and one of Concurrency where its call has not
	// ended.
	Nacked(msg *message.Message, delivery amqp091.Delivery) bool
}
