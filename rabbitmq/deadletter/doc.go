// Package deadletter looks at the dead letters and orphans of RabbitMQ, brings them back, and removes them. It is the
// letters.Store of RabbitMQ. It needs no schedule and declares no queue that stays, so it works beside any app of
// this library, and on dead letters of the broker and of Watermill's PoisonQueue as well.
//
// # How it reads
//
// AMQP 0-9-1 has no method to look at a message. A call consumes the letters that are in the queue when it begins,
// keeps them unacknowledged until it has looked at all of them, and gives them back with basic.nack: then they are in
// the queue in the same order as before. A quorum queue puts what it gets back behind what it got back before, so a
// loop that ends early fetches the rest too, up to 10,000 letters. Where there are more, or the context has ended,
// the order changes. It keeps only their delivery tags, not their bodies. Meanwhile other readers of the queue do not
// get them. A process that dies loses nothing: the broker gives its letters back.
//
// Up to RabbitMQ 4.2 a quorum queue counts each time that a letter is given back, and removes a letter beyond the
// delivery limit of the queue. The library's own dead-letter queues and orphans have a limit that is never reached,
// unless a policy sets another. A letter near the limit, and what is behind it, is replaced by confirmed copies at
// the end of the queue, whose count begins anew. Where the limit is not known, that is from the second look on: see
// Config.Management. A queue in which that is not safe is refused: see Config.AnyLimit.
//
// # How it redrives
//
// A letter is published to its work queue itself, through the default exchange, mandatory and confirmed, and
// acknowledged only then: a consumer group gets its own letters only, and a letter whose work queue is gone stays. An
// orphan goes to the exchange <prefix>.return with the routing key that it came with. At most 256 letters are in
// flight. If the connection or the process ends, each of these may be sent twice, and no letter is lost.
//
// One redrive or discard at a time removes letters from a queue: it holds the exclusive queue "<queue>.lock", which
// the broker removes with its connection. An import needs no lock.
//
// # Drift
//
// Compare shows how the broker, or a policy on it, differs from what apps declare, Apply declares what is missing, and
// Prune removes what no app declares any more.
package deadletter
