// Package middleware holds the router middleware that decides what becomes of a message whose handler failed: it waits on
// a retry tier and comes back, or it is dead-lettered with its whole story, or it is given back to the broker.
//
// The middleware never sleeps for a backoff and never acknowledges a message before the copy that carries it on has been
// published: a nil error from Publisher.Publish must mean that the copy is safe. In doubt a message is handled twice,
// never lost, so handlers must be idempotent. Order is not kept across retries.
//
//	the handler                                     the middleware
//	returns nil                                     hands its messages on
//	returns an error, retries left                  publishes a copy to the tier of this failure
//	returns an error, none left, or Permanent       publishes a copy to the dead-letter topic, with the reason
//	panics, or ends its goroutine                   the same, with an error that holds the stack
//	has acked or nacked the message itself          publishes nothing
//	fails after its context has ended (shutdown)    gives the error back: nothing counted, nothing published
//	the publish fails                               keeps the message and tries again, up to MaxHold or shutdown
//	gets a message well before it is due            parks it again, without calling the handler or counting
//
// It knows no AMQP: package config makes its configuration for RabbitMQ, and package relay for Pub/Subs without TTL queues.
// Copies that wait also carry the metadata of Watermill's components/delay, to the millisecond, so that a Pub/Sub that delays
// messages by itself, such as watermill-sql's delayed PostgreSQL, needs neither.
//
// Its place is outermost of the middlewares that can fail: add it before Timeout, Recoverer and Watermill's own Retry.
package middleware
