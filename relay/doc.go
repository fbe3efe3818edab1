// Package relay gives the retry tiers to Pub/Subs that have no queues with a TTL, such as NATS JetStream, Redis Streams, Kafka,
// plain SQL or Watermill's gochannel. On RabbitMQ use package config: there the broker itself does the waiting.
//
//	topic orders ──► handler billing ── error ──► tier topic retry.5s ── held until due ──► retry.return.billing ──► billing
//	                                                                        retries used up ──► retry.dead.billing
//
// A tier is a topic with one delay, so what is due first is at its head. The relay subscribes to every tier, in the app's own
// process, holds what it gets until it is due, publishes it to the return topic of the handler that failed, and acknowledges
// it only then. AddConsumerHandler and AddHandler subscribe the same handler to its own topic and to its return topic, so no
// other handler or consumer group of the original topic ever sees a retry, and a slow handler never blocks a tier. Payload,
// UUID and metadata come back as they were, with the failure record.
//
// # Hops
//
// A backend hands a message out again that is not acknowledged within its own limit. Nothing is held longer than MaxHop (and a
// twentieth of it, where clocks differ): a longer tier is waited for in equal hops, each of which moves the message to the end
// of its tier's topic, so that the order of due times holds. A ten-minute tier is 30 publishes with the default MaxHop of 20
// seconds. The same way the relay waits out a backoff.RetryAfter that is longer than the longest tier.
//
// # What is guaranteed
//
// No loss: a message is acknowledged only after Publisher.Publish has returned nil, so that has to mean that the backend has it.
// While it fails the message is held, with back-off, up to its hold, or a second on shorter tiers, and then nacked.
//
// Never early: a retry is back no earlier than its delay. It is late by what backend and process need, and, where processes
// wait for it with clocks that differ, by that difference.
//
// In doubt twice: where a backend's limit was outlived, as by a process that stood still; where a process died between publish
// and acknowledgement; where a publish failed whose message the backend has none the less. Handlers must be idempotent.
//
// A message on a tier without a failure record that says its handler is dead-lettered as DeadReasonForeign, to the dead-letter
// topic of UnknownHandler. The record of a handler of another process leads to that handler's return topic.
//
// # What a backend has to be told
//
//	backend         the limit                    what to set in NewSubscriber
//	NATS JetStream  AckWaitTimeout, 30 s         AckWaitTimeout above Hop; a queue group; one message in flight; no MaxDeliver
//	Redis Streams   MaxIdleTime, 60 s            MaxIdleTime above Hop; a consumer group; no Maxlens in the publisher
//	Kafka           none while the client polls  a consumer group that begins with the oldest message
//	SQL             AckDeadline, 30 s            AckDeadline above Hop; a consumer group
//	gochannel       none                         the Pub/Sub itself, without PreserveContext and BlockPublishUntilSubscriberAck
//
// The limit counts for handlers as well: a handler of the app that runs longer than its own subscriber's limit gets its message
// twice, with or without this package.
//
// gochannel keeps nothing over a restart, and drops what is published where nobody subscribes: dead letters, and the retries of
// a handler that was stopped.
//
// A handler that is renamed or removed leaves what it failed on its old return topic: keep a handler of the old name until its
// tiers are empty.
//
// Handler names are parts of topic names: two services on one backend need different names or different prefixes. A tier hands on
// one message after the other, thousands a second where publishing takes tenths of a millisecond; several processes share a
// tier where their subscribers share a consumer group. A gochannel takes one Relay, or every message of a tier would be
// relayed twice. A tier that leaves the schedule belongs into RetiredSchedule until it is empty.
//
// # Shutdown
//
// The tiers stop when the last handler of the relay stops: what is held is given back at once. Then close the relay, and after
// it the publisher.
package relay
