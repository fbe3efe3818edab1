package retry

import (
	"github.com/ThreeDotsLabs/watermill/message"
)

// Connection is an app's connection to a backend with retries. Connect of packages config, amqp3 and relay
// returns one, those of the modules in backends too, and an App of package retrytest is one: a function that gets the
// router and a Connection adds the same handlers on every backend. But Prefetch, Order and CloseTimeout are refused
// by package relay, and Group needs a backend with consumer groups. A Connection is safe for concurrent use.
type Connection interface {
	// AddConsumerHandler adds a handler with retries to the router, as the router's own AddConsumerHandler does. At
	// most one Options can be given. The retry middleware is the handler's first: add the app's other middlewares to
	// the handler that is returned.
	//
	// Options, names, topics and functions that are wrong are an error of the router's Run, and so are options that the
	// backend does not have. It has the faults of all handlers that were added, joined, and nothing is consumed: every
	// Subscribe of this Connection returns them, also later. Correct them, and connect again. A nil router panics.
	AddConsumerHandler(router *message.Router, name, topic string, handler message.NoPublishHandlerFunc,
		options ...Options) *message.Handler

	// AddHandler is AddConsumerHandler for a handler that produces messages. They are published with Publisher. If one
	// of them cannot be published, the message has failed with ErrNotPublished, and is retried.
	AddHandler(router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
		options ...Options) *message.Handler

	// Subscriber returns the subscriber of a handler, for code that adds handlers by itself: the processors of
	// components/cqrs, Requeuer, FanIn. The replies of components/requestreply need a subscriber of the Pub/Sub itself,
	// except on RabbitMQ. Add Middleware to its handlers. The name is used in logs, and is a part of topic names on
	// gochannel: each handler of an app needs its own. The subscriber's Close ends its subscriptions only.
	Subscriber(name string, options ...Options) (message.Subscriber, error)

	// Middleware is the retry middleware for handlers with a Subscriber of this connection, for a handler's or a
	// router's AddMiddleware. It uses the policy of the message's subscriber. A message of another Connection is
	// retried by that connection. Messages of all other subscribers are refused: each is held, and the log has the
	// reason.
	Middleware(message.HandlerFunc) message.HandlerFunc

	// Publisher is the publisher of the app's own messages. Its Close does nothing: Close closes it.
	Publisher() message.Publisher

	// Pause makes a handler take no new messages, until Resume. Its messages stay in the queue, in their order, and
	// count no failure; retries that are due wait there too. Messages in flight go on. The name is that of the handler,
	// or what Subscriber was called with: then all its subscriptions are paused. A handler can be paused before the
	// router runs. A pause is one of this connection: other instances of the app go on, and a new connection has none.
	// Pause does not wait. It returns an error for an unknown name, which lists the names.
	//
	// On RabbitMQ the consumer is cancelled, or the partitions of an Order go to other processes, also across a
	// reconnect, and nothing stays unacknowledged. Other Pub/Subs cannot be told to stop: their next message waits
	// before the handler, is nacked after Policy.MaxHold, and waits again when it is redelivered.
	Pause(handler string) error

	// Resume ends a Pause. A handler that is not paused is no error. A pause for another reason stays; see
	// SubscriptionHealth.
	Resume(handler string) error

	// Observe attaches observers, such as those of package observe, to all handlers of the connection, also to those
	// that were added before. What an observer does cannot change the outcome of a message. Its errors are logged. Call
	// it once for each observer.
	Observe(observers ...Observer)

	// Health returns the state of the connection and of all its subscriptions. It does not wait for the backend.
	Health() Health

	// Close ends what is left in the right order: the subscriptions, then the publishers, then the connections. Close
	// the router first, or let its Run return: a message in flight needs its publisher. It may be called several times.
	Close() error
}
