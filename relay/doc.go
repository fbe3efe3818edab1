// Package relay provides retry tiers for Pub/Subs that have no queues with a TTL. On RabbitMQ, use package config:
// there the broker itself delays the messages.
//
//	topic orders ──► handler billing ── error ──► tier topic retry.5s ── due ──► retry.return.billing ──► billing
//	                                                         retries used up ──► retry.dead.billing
//
// A tier is a topic whose messages all wait for the same delay, so the message that is due first is at its head. The
// relay runs in the app's own process. It subscribes to every tier and keeps each message unacknowledged until it is
// due. Then the relay publishes the message to the return topic of the handler that failed, and after that acknowledges
// it.
//
// Connect returns a retry.Connection, which adds handlers to a router.
//
// A handler is subscribed to two topics: its own and its return topic. No other handler and no other consumer group of
// the original topic receives a retry. A slow handler does not block a tier. Payload, UUID and metadata come back
// unchanged; the failure record is added to the metadata.
//
// # Hops
//
// A backend redelivers a message that is not acknowledged within its redelivery limit. The relay therefore keeps a
// message for at most one hop, which is at most Config.MaxHop, and up to 5% + 2 ms longer where the clocks of processes
// differ. A tier that is longer than MaxHop consists of equal hops. At the end of each hop the message is published to
// the end of its tier's topic again, so the order of due times stays the same. With the default MaxHop of 20 seconds, a
// ten-minute tier takes 30 publishes. A requested delay (backoff.RetryAfter) is exact here; one that is longer than the
// longest tier is waited for in the same way. On RabbitMQ it is rounded up to whole tiers. The relay neither writes nor
// reads retry_remaining: where a message of another origin has it, the middleware parks the message once, for that
// long.
//
// # Clocks
//
// The relay compares the due time, which the host of the failure has written, with the clock of its own host. So a
// retry comes late by the difference between the two clocks, or early by it, and then by its whole delay at most. While
// a message is late it is published once for each hop of the longest tier, and at most about once a second: with clocks
// that differ by two hours and hops of 20 seconds, 360 times. A due time that no app has written is waited for in the
// same way. One that is more than backoff.MaxDelay, ten years, ahead is not: the message is foreign. Due times count on
// tiers only, so that a forged one on an app's topic has no effect. Keep the clocks of the hosts synchronized.
//
// # Guarantees
//
// No loss: a message is acknowledged only after Publisher.Publish has returned nil. Publish must therefore return nil
// only when the backend has stored the message. While Publish fails, the relay holds the message and tries again with
// back-off, for one hop or one second, whichever is longer. Then it nacks the message.
//
// Never early: a retry comes back no earlier than its delay, by one clock. It can be late by the time that backend and
// process need. Where hosts with different clocks share a tier, it can be late or early by that difference: see Clocks.
//
// Delivery is at least once. A message comes twice if its redelivery limit passes while it waits (a paused process), if
// a process dies between publish and acknowledgement, or if Publish fails although the backend has stored the message.
// Handlers must be idempotent.
//
// Foreign messages: a message on a tier that has no readable failure record, or whose record names no handler, is
// dead-lettered with DeadReasonForeign on the topic "<Prefix>.dead.unknown". Like every dead letter it has a record that
// retry.ReadRecord reads; if it had none, Topic is the tier's topic and Failures is 1. A message whose record names a
// handler of another process is forwarded to the return topic of that handler.
//
// # Dead letters
//
// Package letters/relayletters looks at the dead letters of a relay, redrives and discards them. A redriven letter goes
// to the return topic of its handler, without a failure record: the handler gets it as a new message.
//
// # Settings of each backend
//
// docs/other-pubsubs.md lists the redelivery limit of each backend, and what NewSubscriber must set:
// https://github.com/tieredretry/watermill-retry/blob/main/docs/other-pubsubs.md#the-subscriber-of-a-tier
//
// The limit applies to the app's own subscribers, too: a handler that runs longer than the limit of its subscriber
// receives its message twice, with or without this package.
//
// gochannel keeps nothing over a restart. It drops what is published to a topic without a subscriber: dead letters, and
// the retries of a handler that has stopped. Use one connection per gochannel: a second one would forward every message
// again.
//
// # Names and changes
//
// Handler names are parts of topic names: two services on one backend need different handler names or different
// prefixes. The return topic of a Connection's handler is "<Prefix>.return.<name>", and its dead-letter topic
// "<Prefix>.dead.<name>". A subscriber of Connection.Subscriber can have several topics. For each, the handler's name
// in the failure record is "<name>.<topic>", and its topics are "<Prefix>.return.<name>.<topic>" and
// "<Prefix>.dead.<name>.<topic>".
//
// A handler is subscribed once in a process: the second Subscribe with the same name and topic is an error until the
// first subscription has ended.
//
// When you rename or remove a handler, its retries still go to its old return topic: keep a handler with the old name
// until the tiers and that topic are empty. When you remove a delay from a schedule, list it in RetiredSchedule until
// its tier is empty. The same holds for the schedule of a handler that you remove.
//
// A tier forwards one message at a time: thousands a second where a publish takes tenths of a millisecond. Several
// processes share the messages of a tier if their subscribers are in one consumer group.
//
// # Shutdown
//
// The tiers stop when the last handler of the relay stops; the relay then nacks every message that waits. Close the
// router first, then the Connection, which closes its publishers too.
package relay
