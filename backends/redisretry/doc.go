// Package redisretry retries the messages of Watermill handlers on Redis Streams. It needs Redis 6.2 or later, and is
// tested on 7.0, on one server and on Redis Cluster.
//
//	stream orders ──► handler ── error ──► set of the return topic ── due ──► the same handler
//	                             retries used up ──► stream retry.dead.billing.orders
//
// Connect returns a retry.Connection, which adds handlers to a router. Letters opens the dead letters.
//
// # The app's topics
//
// A topic is a stream in the format of watermill-redisstream, so other services may publish and subscribe with that
// package. The consumer group of a handler is Config.Group, or the Group of its options. A new group begins with the
// oldest entry, after XGROUP CREATE orders billing $ with new entries only. An app that comes from
// watermill-redisstream gives Group the name of its consumer group. A handler has up to Concurrency calls at the same
// time, 16 by default, in each process.
//
// Entries stay in their stream after they are acknowledged, because other groups may need them: the app decides when
// to trim a stream, for example with XTRIM.
//
// All consumers of a group should be of this package, with the same Lease: watermill-redisstream's own subscriber does
// not renew what it has in flight, so this package takes its messages over after one Lease.
//
// # Retries
//
// A copy waits in a sorted set, by due time, and in a hash, which has its payload and metadata: about 220 bytes and the
// message itself. It is one write, however long the delay is. The server's clock sets the due time and compares it; no
// clock of an app's host does. When a retry is acknowledged, all of it is deleted. The keys begin with the name of the
// return topic, "<Prefix>.return.<group>.<topic>", or with "<Prefix>.returns". Each has one of 16 hash tags: on Redis
// Cluster the return topics of a prefix are in up to 16 slots.
//
// # In flight
//
// A message in flight is leased, for Config.Lease. The lease is renewed as long as its handler runs, so a slow handler
// is called once. Close gives back what is in flight, and other processes get it within about 100 ms. What a process
// had in flight when it was killed comes again after one Lease, or up to 20% later. Where a group had nothing in flight
// on a topic before, that can take two Leases. A message that a lost connection swallowed comes again in the same way.
// Where another process has got a message, its context ends at the next renewal, within a third of a Lease.
//
// Commands of the connection itself end after 5 seconds, so Close ends on a network that drops packets. A command whose
// tries go-redis does not end, as with a ReadTimeout of -1, needs the option ContextTimeoutEnabled of the Client.
//
// # Connections and polls
//
// Commands use the Client. A consumer group holds one connection more, outside of the Client's pool, on which it waits
// for entries of all its topics; on Redis Cluster that is one for each topic. There are at most 32 of these connections
// in a process: further groups are polled, each at most ten times a second, all together at most 500 times. They are
// polled too where the Client is neither a *redis.Client nor a *redis.ClusterClient.
//
// An idle handler costs the server one script in each Lease, and an idle group one command a second. A process, with
// any number of handlers, costs ten calls a second of one script, which reads two keys for each hash tag in use. On
// Redis Cluster it is one call for each hash tag.
//
// A user with an ACL needs the keys of its topics and "<Prefix>.*", with the commands of streams, sorted sets, hashes
// and sets, and EVAL, EVALSHA, TIME, GET, SET, DEL, PEXPIRE. It should have CLIENT|ID and CLIENT|UNBLOCK: without them
// a message of a topic that was busy can wait for 100 ms. With INFO, Connect can warn of an eviction policy.
//
// # Guarantees
//
// Publish returns nil after the server has stored the message, and a message is acknowledged only after that. Where
// the answer of the server is lost, the message is published again: a duplicate is preferred to a loss.
//
// What the server has stored it can lose in a power cut. With appendonly and the default appendfsync everysec it loses
// up to a second of writes, with always none, without appendonly all writes since the last snapshot. A replica that
// becomes the master can lack the last writes. Keep maxmemory-policy at its default, noeviction. With a maxmemory
// the policies allkeys-* delete messages that wait, dead letters and topics, and Connect logs a warning. The policies
// volatile-* delete only what has a time to live: topics to which the app has given one, and the lock of a redrive,
// which then ends with an error.
//
// A message that this package cannot read, on a topic or a return topic, becomes a dead letter on
// "<Prefix>.dead.unknown", with the reason foreign. Those behind it are delivered.
package redisretry
