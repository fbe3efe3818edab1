// Package rabbit gives a test a RabbitMQ of its own: a model of the broker in memory, to which the unmodified client
// speaks AMQP. In a bubble of testing/synctest an app's real topology, handlers, retries and dead letters run in
// virtual time, without Docker:
//
//	synctest.Test(t, func(t *testing.T) {
//		broker := rabbit.New(t)
//		own := amqp.NewDurableQueueConfig(rabbit.URI)
//		own.Connection.AmqpConfig = broker.AmqpConfig()
//		retries, err := config.Connect(config.Config{AMQP: own, Policy: policy}, nil)
//		// ... the app's own function adds the handlers and runs the router
//		broker.Cut()
//		time.Sleep(10 * time.Minute) // takes no time
//		dead := broker.Messages("orders.dead")
//	})
//
// A test can cut, silence and slow down connections, block publishers, stop the node, set policies, delete queues,
// and read what lies in each of them. What has no method here can be done by a client of amqp091-go, which the test
// opens with amqp091.DialConfig(rabbit.URI, *broker.AmqpConfig()).
//
// # What it does not show
//
// The model is tested with RabbitMQ 3.10, 4.0 and 4.3 by random scripts, to which both must give the same answers. It
// still is a model: it shows what an app does when a broker behaves as RabbitMQ is known to. It never proves what a
// broker does. [LeftOut] returns what the model leaves out. Users, permissions and virtual hosts are among it: any user
// name and any virtual host lead to the same broker.
//
// # In the bubble
//
// New must be called inside of synctest.Test with the t of its function, and all clients of a broker must be in its
// bubble. A test may have several brokers, and tests with a bubble each may run in parallel.
//
// Time in a bubble advances only while all its goroutines wait for time, for channels of the bubble, or for each other.
// So handlers must not do network I/O, or sleep while they hold a mutex that another goroutine wants. The Close of
// Watermill's router holds one while handlers run: end the router by the context of its Run, when no handler sleeps.
// Close all clients in t.Cleanup, so that a failed assertion closes them, too: a bubble whose goroutines are left
// panics, and hides the assertion. The test fails where a client is still connected at its end, and names it.
//
// With the race detector run these tests by "go test -race -cpu=1": where timers of one bubble run on two processors,
// the race detector of Go 1.26 and before crashes now and then, with SIGSEGV or "CHECK failed" (go.dev/issue/78156).
//
// Outside of a bubble the broker works as well, in real time: a retry after a minute takes a minute. The test's log
// states that.
package rabbit

import (
	"slices"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

// LeftOut returns what the model does not do as RabbitMQ does.
func LeftOut() []string { return slices.Clone(model.LeftOut) }
