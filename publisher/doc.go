// Package publisher is a Watermill publisher for RabbitMQ that tells the truth: Publish returns nil only when the broker
// has routed the message to a queue and confirmed it. Everything else is an error with a type of its own.
//
// A confirm alone does not say that a message is in a queue: RabbitMQ confirms what it could not route, too. So every
// message is published as mandatory, and the broker's return of it, which comes before its confirm, is matched by an
// id in the header IDHeader.
//
// All callers share one connection and one channel. One goroutine writes: callers hand it their messages and wait, so
// that a peer that stops reading holds up nobody longer than the caller's own deadline, and messages that come
// together leave in one write. The way of a message through the files:
//
//	publisher.go   Publish: marshal, refuse what the broker would close the channel for (inspect.go), take a slot
//	writer.go      the one writer: publishes on the session's channel, through a socket that gathers writes (socket.go)
//	call.go        the caller waits for confirm, return, or its deadline, and decides what to do next
//	redeclare.go   returned as unroutable: Config.Redeclare puts the topology back, the message is published once more
//	quarantine.go  the channel was closed under it: published again alone, so that only the guilty message fails
//	supervise.go   keeps a connection (connection.go) with a session (session.go) on it
//
// # Duplicates
//
// A message can arrive twice where Publish alone decides to send it again: the channel was closed while it was in flight,
// so that its fate was unknown. The broker closes it because of a message; the publisher gives it up when messages whose
// callers have left without a confirm hold more than half of Config.MaxInFlight. And it can arrive although Publish
// returned an error: each error says so in its documentation. Where Publish sent a message again, the error is that of
// the last attempt, and an earlier one may have been delivered. Consumers have to be idempotent.
package publisher
