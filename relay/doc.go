// Package relay retries the messages of Pub/Subs that have no queues with a TTL. On RabbitMQ, use package config: there
// the broker itself delays the messages. For Redis, NATS, PostgreSQL and Kafka use the modules in folder backends: each
// has a Connect that configures this package. Use this package directly for gochannel, and for a Pub/Sub of your own.
//
// Connect returns a retry.Connection, which adds handlers to a router. A handler is subscribed to two topics: its own
// and its return topic. No other consumer group of the original topic receives a retry. Payload, UUID and metadata come
// back unchanged; the failure record is added to the metadata.
//
// Where a message waits depends on the Pub/Sub.
//
// # The Pub/Sub delays messages
//
//	topic orders ──► handler ── error ──► retry.return.billing.orders ── due ──► handler
//	                     retries used up ──► retry.dead.billing.orders
//
// With Config.DelayedReturns, a copy goes to its return topic at once, and the Pub/Sub holds it back by its own clock.
//
// # Tiers
//
//	topic orders ──► handler ── error ──► tier topic retry.5s ── due ──► retry.return.billing.orders ──► handler
//	                     retries used up ──► retry.dead.billing.orders
//
// Without it, a tier is a topic whose messages all wait for the same delay, so the message that is due first is at its
// head. The relay runs in the app's own process. It subscribes to every tier and keeps each message unacknowledged
// until it is due. Then it publishes the message to its return topic, and after that acknowledges it. So a retry is
// published twice, whatever its delay. The subscriber of a tier must keep a message unacknowledged as long as its tier
// lasts: a Pub/Sub with a redelivery limit must be able to renew it, or must delay messages itself.
//
// A requested delay (backoff.RetryAfter) is exact. Where no tier is as long, the message stays on the longest one for
// several rounds, and the rest on a shorter one: each is one publish. The relay neither writes nor reads
// retry_remaining: where a message of another origin has it, the middleware parks the message once, for that long.
//
// A message on a tier that has no readable failure record with a handler is dead-lettered with DeadReasonForeign on the
// topic "<Prefix>.dead.unknown". Like every dead letter it has a record that retry.ReadRecord reads; if it had none,
// Topic is the tier's topic and Failures is 1.
//
// A tier publishes what is due for a topic in batches of up to 256 messages at the same time, so their order can
// change. Topics do not wait for each other. A process keeps up to 4,096 messages of a tier. Several processes share
// the messages of a tier if their subscribers are in one consumer group. The tiers stop when the last handler stops;
// the relay then nacks every message that waits.
//
// When you remove a delay from a schedule, list it in RetiredSchedule until its tier is empty.
//
// The relay compares the due time, which the host of the failure has written, with the clock of its own host. So a
// retry comes late by the difference between the two clocks, or early by it, and then by its whole delay at most. A due
// time that is more than backoff.MaxDelay, ten years, ahead is foreign. Keep the clocks of the hosts synchronized, and
// let only the app publish to tiers: a forged due time is waited for.
//
// # Guarantees
//
// No loss: a message is acknowledged only after Publisher.Publish has returned nil. Publish must therefore return nil
// only when the backend has stored the message. While Publish fails, a tier holds the message and tries again with
// back-off, for 5 seconds. Then it publishes the message to a tier again, the longest one of at most a minute, else the
// shortest. So a return topic that takes no messages delays no other, and its own wait until it takes them: a tier
// longer. Where the tier takes none either, the message is nacked after 20 seconds.
//
// Never early: by the clock of the Pub/Sub with DelayedReturns, by those of the hosts on tiers.
//
// Delivery is at least once. A message comes twice if a process dies between publish and acknowledgement, or if Publish
// fails although the backend has stored the message. Handlers must be idempotent.
//
// # Names
//
// With Config.Group, the return topic and the dead-letter topic belong to a group and its topic, as on RabbitMQ:
// handlers may be renamed, and processes come and go. Services with different groups do not meet. Handlers with the
// same group and topic share their messages and their retries.
//
// Without it they belong to a handler, for Pub/Subs without consumer groups: each handler gets every message. A handler
// then needs one name in all processes, and a handler that is renamed leaves its retries behind. gochannel is one. It
// keeps nothing over a restart, and drops what is published to a topic without a subscriber: dead letters, and the
// retries of a handler that has stopped. Use one connection per gochannel.
//
// # Dead letters
//
// Package letters/relayletters looks at the dead letters of a relay, redrives and discards them. A redriven letter goes
// to the return topic beside its dead-letter topic, without a failure record: the handler gets it as a new message.
//
// # Your own Pub/Sub
//
// Connect takes any Publisher and Subscriber. What they must do:
//
//   - Publish returns nil only when the server has stored the message. Metadata, payload and UUID stay.
//   - What is not acknowledged is delivered again, also after the process has died.
//   - The processes of a consumer group share its messages. Without groups, leave Config.Group empty.
//   - Best: the server delays messages, as SQS does for up to 15 minutes. Set Config.DelayedReturns, and let the
//     Publisher hold back what goes to return topics.
//   - Else tiers: a subscriber keeps a message unacknowledged as long as its tier lasts, without a redelivery, and
//     delivers those of a tier in the order in which they were published.
//
// Folder backends/conformance of the repository has a suite that tests all of it: CONTRIBUTING.md has how to add a
// backend.
package relay
