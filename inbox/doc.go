// Package inbox calls a handler once for each message, as far as its effects are in one PostgreSQL database. Its
// middleware begins a transaction, writes the id of the message into a table, calls the handler with the transaction in
// the message's context, stores the messages that the handler has produced, and commits. A second delivery finds the
// row: the handler is not called, what it had produced is published again, and the outcome is retry.Duplicate. A
// handler that fails or panics has its transaction rolled back, with the row, so a retry is never taken for a
// duplicate.
//
// Two deliveries at the same time: the second one waits for the first. After Config.Wait it is snoozed, which counts no
// failure.
//
// What identifies a message is its UUID and its consumer: the work queue on RabbitMQ, the consumer group and the topic
// on other backends, the handler on gochannel. So each group handles a message once. Services on one broker may share a
// table. Those on different brokers or virtual hosts, where two queues can have one name, need a table each, as do apps
// on gochannel. A message without a UUID is refused: it is dead-lettered at once.
//
// What can happen again: an effect outside of the transaction, such as a payment, a mail, or a message that the handler
// publishes by itself and does not return; the effects of a message that comes after Config.Retention; those of an
// order that its publisher sends with another UUID. Two messages with the same UUID are one, and the second is a
// duplicate.
//
// Add the middleware after the retry middleware:
//
//	rabbit.AddConsumerHandler(router, "billing", "orders", bill).AddMiddleware(box.Middleware)
//	router.AddMiddleware(rabbit.Middleware, box.Middleware) // for the processors of components/cqrs
//
// For pgx's own transactions there is the module inbox/pgxinbox.
package inbox
