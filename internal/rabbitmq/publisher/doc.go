// Package publisher is a Watermill publisher for RabbitMQ. Publish returns nil only when the broker has routed the message to at
// least one queue and confirmed it. In all other cases it returns a *PublishError, which wraps one of this
// package's Err variables, or several of them joined.
//
// A confirm alone does not prove that a message is in a queue: RabbitMQ also confirms messages that it could not route. The
// publisher therefore publishes every message as mandatory. The broker returns an unroutable message before it confirms it, and
// the publisher matches the return to the message by an id in the header IDHeader.
//
// A Connection is one AMQP connection for publishing, with one channel. Any number of Publishers share it, each with its own
// exchange or routing, declarations and Marshal. What they have in common is in ConnectionConfig, such as MaxInFlight. A message that
// fails does not harm those of other Publishers.
//
// # Exchanges
//
// The broker closes the channel because of a publish to an exchange that does not exist. Config.DeclareExchange therefore declares
// each exchange before the first publish to it on a connection. When an exchange is deleted later, the messages in flight are
// published again, one after the other, and DeclareExchange is called for those that need it. Redeclare is for what the broker
// returns: it restores deleted queues and bindings.
//
// # Duplicates
//
// Delivery is at least once. Publish itself sends a message again when the channel was closed while the message was in flight,
// because its outcome is then not known. The broker closes the channel because of a message. The publisher closes it when
// abandoned messages, which are those whose callers have returned without a confirm, hold more than half of MaxInFlight.
//
// A message can also be delivered although Publish returned an error; the documentation of each error states whether it can.
// When Publish sent a message more than once, the error is that of the last attempt, and an earlier attempt may have been
// delivered. Consumers have to be idempotent.
//
// # How it works
//
// This section is for contributors.
//
// All callers of a Connection share one channel. One goroutine writes; callers pass their messages to it and wait. When the
// broker stops reading, each caller still returns at its own deadline. Messages that are published at the same time leave in one
// write. The way of a message through the files:
//
//	publisher.go   Publish: routes, marshals, refuses messages that would close the channel (inspect.go), makes a request (request.go)
//	declare.go     Config.DeclareExchange before the first publish to an exchange, and Config.Redeclare after a return
//	call.go        takes a slot, sends the request to a lane, waits for confirm, return or deadline, and decides what is next
//	writer.go      the first lane: publishes on the shared channel, through a socket that gathers writes (internal/socket)
//	quarantine.go  the second lane, after the channel was closed: publishes alone, so that only the message that caused it fails
//	connection.go  Connection: a link and the Publishers that share it; health.go reports its state for readiness probes
//	link.go        keeps a connection with a session on it (session.go)
//
// A session is one channel. A retired session takes no new messages. The confirms of one that is given up are not awaited any more.
// Each line is a change of its state, and the reason:
//
//	open     ──► retired   a nack when the channel is over 10 s old, or a message without IDHeader, which has a channel of its own
//	open     ──► given up  over half of MaxInFlight is abandoned, or the caller of a message in the quarantine has left
//	retired  ──► given up  ConfirmTimeout later
//	given up ──► closing   at once: the publisher sends channel.close
//	any      ──► closed    the broker answers channel.close, or closes the channel because of a message or with the connection
package publisher
