package subscriber

import (
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A Declaration is what one call of Handler.Declare may use.
type Declaration struct {
	// Its method Channel returns a channel that is open until Declare returns. The broker closes it when it refuses a
	// declaration: the next call opens another one.
	wire.Reopening

	// Broker is the AMQP connection. It may be used after Declare has returned. What was declared once on a connection
	// need not be declared again on it, except where LostAt is set.
	Broker Broker

	// LostAt is when the topic's consumer ended although the connection is open, or when the broker refused to consume
	// because the queue does not exist: what was declared on this connection before that time may be gone. Zero:
	// nothing is known to be gone. SubscribeInitialize sets it to the time of the call.
	LostAt time.Time
}

// A Broker is what a Declaration may use of its AMQP connection.
type Broker interface {
	// Number identifies the connection. Each connection of the process, also after a reconnect, has a higher one than
	// those before it.
	Number() uint64

	// OpenChannel opens a channel that the caller closes. When the connection is lost, it returns an error.
	OpenChannel() (*amqp091.Channel, error)

	// Version is the version of the broker as it names it, such as "4.0.5". Empty: it names none.
	Version() string
}

// declare calls Handler.Declare.
func (s *Subscriber) declare(current *wire.Connection, topic string, lostAt time.Time) error {
	return s.with(current, topic, lostAt, "Declare", s.handler.Declare)
}

func (s *Subscriber) with(
	current *wire.Connection, topic string, lostAt time.Time, name string, call func(*Declaration, string) error,
) error {
	declaration := &Declaration{Reopening: wire.Reopening{On: current}, Broker: current, LostAt: lostAt}
	defer declaration.Close()
	if err := panics.Error(name, func() error { return call(declaration, topic) }); err != nil {
		return fmt.Errorf("topic %q: declare: %w", topic, err)
	}
	return nil
}

// A Handler is whom a Subscriber consumes for. Its methods are called by several goroutines at the same time. A panic
// in one of them counts as an error.
type Handler interface {
	dispatch.Handler

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
}
