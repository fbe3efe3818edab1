// Package middleware provides the router middleware that decides what becomes of a message whose handler failed: it
// waits on a retry tier and comes back, it becomes a dead letter, or it is given back to the broker.
//
// The middleware never sleeps for a backoff. It never acknowledges a message before the copy that replaces it has been
// published: a nil error of the publish means that the copy is safe. Delivery is at least once: a duplicate is
// preferred to a loss, so handlers must be idempotent. Order is not kept across retries.
//
// What becomes of a delivery is its retry.Outcome.
//
// A handler that panics, ends its goroutine or returns a nil message has failed. While a copy cannot be published the
// message is held, with back-off, up to MaxHold or shutdown.
//
// Rules decide by the kind of an error, a Breaker pauses a handler while most of its messages fail, and MaxAge ends the
// retries of messages that are too old. Observers get every outcome.
//
// The package imports no AMQP: it asks a backend. A builder of package config has one for RabbitMQ, package relay one
// for Pub/Subs without TTL queues. Copies that wait also carry the metadata of Watermill's components/delay, to the
// millisecond. A Pub/Sub that delays messages by itself, such as watermill-sql's delayed PostgreSQL, needs neither
// package.
//
// The middleware belongs outside of all middlewares that can fail: add it before Timeout, Recoverer and Watermill's own
// Retry. A Connection adds it first.
package middleware
