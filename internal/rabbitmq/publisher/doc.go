// Package publisher publishes to RabbitMQ. Send is its lower half: it returns nil only when the broker has routed each
// message to at least one queue and confirmed it. What is in a message, and what is declared for it, the layers above
// know: the publishers of the app's messages and of copies in package rabbitmq, and the sender of letters in
// rabbitmq/deadletter.
//
// A confirm alone does not prove that a message is in a queue: RabbitMQ also confirms messages that it could not route.
// Send therefore publishes every message as mandatory. The broker returns an unroutable message before it confirms it,
// and Send matches the return to the message by an id in the header IDHeader.
//
// # Declarations
//
// The broker closes the channel because of a publish to an exchange that does not exist. The app's exchanges are
// therefore declared before the first message to them on a connection, and again when they were deleted later. Tiers
// and dead-letter queues are declared again when the broker has returned a copy. Declarations does both, for the layers
// above.
//
// # Duplicates
//
// Delivery is at least once. Send itself sends a message again when the channel was closed while the message was in
// flight, because its outcome is then not known. The broker closes the channel because of a message. The publisher
// closes it when abandoned messages, which are those whose callers have returned without a confirm, hold more than half
// of MaxInFlight.
//
// A message can also be delivered although Send returned an error; the documentation of each error in package publish
// states whether it can. When Send sent a message more than once, the error is that of the last attempt, and an earlier
// attempt may have been delivered. Consumers have to be idempotent.
//
// # How it works
//
// All callers of a Connection share one channel. One goroutine writes; callers pass their messages to it and wait. When
// the broker stops reading, each caller still returns at its own deadline. Messages that are published at the same time
// leave in one write. The way of a message through the files:
//
//	send.go        Send: refuses messages that would close the channel (inspect.go), makes requests (request.go)
//	call.go        takes a slot, sends the request on, waits for confirm, return or deadline, decides
//	writer.go      publishes on the shared channel, through a socket that gathers writes
//	quarantine.go  after the channel was closed: publishes alone, so that only what caused it fails
//	sessions.go    keeps a session (session.go) on the connection, which wire.Link keeps open (connection.go)
//	declare.go     Declarations, for the layers above
//
// A session is one channel. A retired session takes no new messages. The confirms of one that is given up are not
// awaited any more. Each line is a change of its state, and the reason:
//
//	open     ──► retired   a nack when the channel is over 10 s old, or a message without IDHeader: it has its own
//	open     ──► given up  over half of MaxInFlight is abandoned, or the caller of a quarantined message has left
//	retired  ──► given up  ConfirmTimeout later
//	given up ──► closing   at once: the publisher sends channel.close
//	any      ──► closed    the broker answers channel.close, or closes the channel or the connection
package publisher
