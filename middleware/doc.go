// Package middleware is the router middleware that decides what becomes of a message whose handler failed: it waits on
// a retry tier and comes back, it becomes a dead letter, or it is given back to the broker.
//
// The middleware never sleeps for a backoff. It never acknowledges a message before the copy that replaces it has been
// published: a nil error of Backend.Publish must mean that the copy is safe. Delivery is at least once: a duplicate is
// preferred to a loss, so handlers must be idempotent. Order is not kept across retries.
//
//	outcome          when                                                       what happens
//	processed        the handler returns nil                                    its produced messages are published
//	recovered        the same, and it had failed or was snoozed before          the same
//	retried          it fails and retries are left                              a copy goes to the tier of this failure
//	snoozed          it fails, and a rule does not count it                     a copy goes to a tier, uncounted
//	parked           a part of a requested delay remains                        a copy goes to a tier, uncounted
//	dead-lettered    no retries left, Permanent, a rule, too old or unreadable  a copy becomes a dead letter, with the reason
//	discarded        it fails, and a rule discards the message                  the message is acked, no copy is published
//	held             the copy cannot be published yet                           the message waits, another outcome follows
//	given back       the subscription ends, a rule, or no copy for MaxHold      the message is nacked, nothing is counted
//	settled          the handler fails after it has acked or nacked the message no copy is published
//
// A handler that panics, ends its goroutine or returns a nil message has failed. While a copy cannot be published the
// message is held, with back-off, up to MaxHold or shutdown.
//
// Rules decide by the kind of an error, a Breaker pauses a handler while most of its messages fail, and MaxAge ends the
// retries of messages that are too old. Observers get every outcome.
//
// The package imports no AMQP: it asks a Backend. A builder of package config has one for RabbitMQ, package relay one for
// Pub/Subs without TTL queues. Copies that wait also carry the metadata of Watermill's components/delay, to the millisecond. A Pub/Sub
// that delays messages by itself, such as watermill-sql's delayed PostgreSQL, needs neither package.
//
// The middleware belongs outside of all middlewares that can fail: add it before Timeout, Recoverer and Watermill's own
// Retry. A Connection adds it first.
package middleware
