// Package natsretry retries the messages of Watermill handlers on NATS JetStream. A handler gets each message that
// failed again, after the delays of a schedule, and a message whose retries are used up becomes a dead letter.
//
// Connect returns a retry.Connection, Letters the dead letters.
//
//	subject orders ──► handler ── error ──► retry.wait.<one subject for each message>
//	                      ▲                          │ due, by the server's clock
//	                      └── retry.return.billing.orders
//	                                        retries used up ──► retry.dead.billing.orders
//
// # What is on the server
//
// One stream, named after Config.Prefix, has all that waits, comes back or is dead. It deletes what is acknowledged
// (WorkQueuePolicy). A message that waits is a scheduled message of NATS 2.12: the server itself publishes it to the
// return topic of its group and topic when it is due, and deletes the schedule. The app publishes it once, for a delay
// of a second or of a year.
//
// A topic of the app is a subject of a stream of the app's own. Connect uses the stream that has the subject. Where
// there is none, a subscription or a publish makes one without limits, with one subject: it keeps every message, also
// what all groups have acknowledged. Make the stream yourself for another retention.
//
// For each group and topic there are two durable pull consumers, one for the topic and one for its return topic. All
// processes of the group share them. A consumer of a group that is gone stays, as on every use of durable consumers:
// delete it with `nats consumer rm`. Do not delete that of a group that lives: it is made again, and begins with the
// oldest message of the topic, so that the group gets all of them once more. Copies that wait are not repeated.
//
// Messages on the app's topics have the format of watermill-nats's NATSMarshaler, so that its publishers and
// subscribers can be on the other side. The consumer of an app that comes from watermill-nats is new, and begins with
// the oldest message: purge what was handled. With WorkQueuePolicy, first delete the old consumer. Copies keep every
// byte of payload and metadata. What a NATS header would lose is in the header _watermill_retry_metadata, and so is
// what the server would read, such as "Nats-Rollup".
//
// # Guarantees
//
// No loss: a message is acknowledged only after the server has stored its copy. A duplicate is preferred to a loss: a
// message comes twice when a process dies between the two, when the answer to a publish is lost, and when a process
// that has it in flight does not renew its lease in time.
//
// Never early: the due time is computed from the clock of the server that leads the stream, which is read every ten
// seconds and rounded up. The clocks of the app's hosts decide nothing. In a cluster, a retry can be early or late by
// what the clocks of two servers differ, if another one is elected while it waits. The server looks for due messages
// every 250 ms, so that a retry is up to that much late, and a shorter delay lasts at least as long.
//
// In flight: a handler has up to Concurrency calls at the same time, 16 by default. A process has
// twice as many messages in flight, and up to 8 times as many where calls are short. A lease is renewed while the
// handler has the message, however long it takes. When a process is killed, others get its messages after Config.Lease.
// When it closes its connection, they get them at once.
//
// # Power cuts
//
// NATS answers a publish before its file is synced: by default it syncs every two minutes (sync_interval). After a
// power cut, or a crash of the operating system, what a single server has answered in that time can be lost. A crash or
// a kill of the server alone loses nothing. Run three servers in different places, so that three have each message (the
// default of Replicas in a cluster), or set `sync_interval: always` in the jetstream block, which makes publishes as
// slow as the disk.
//
// # A full store
//
// The server publishes a message once when it is due. Where the account or the server has no room for it then, the
// server gives it up: it publishes it again only after a restart, or when another server leads the stream. So each
// process looks every 15 seconds for messages that are overdue by 30 seconds, and replaces them by themselves, unless
// they have come meanwhile: the server then begins anew. In a cluster that is as slow as that, such a message can come
// twice. While there is no room, Health has Tiers and TiersError, and the log has a line. Delete messages that are not
// needed (nats stream purge orders --seq N), or raise max_file_store of the server or the limit of the account. A look
// reads up to 128 of the oldest messages that wait and 128 at another place, or 1 MiB of each, so one of 100,000 can
// be found later.
//
// # Limits
//
// A copy has the failure record in its headers, so a message that nearly has the size of the server's max_payload (1
// MiB by default), or 64 KiB of headers, becomes a dead letter without parts of the record, or is held.
//
// 100,000 messages that wait take 27 MB of disk and 35 MB of the server's memory, with small payloads, and do not slow
// a publish down. When they are due together, the server publishes about 13,000 in a second (one run, two busy cores).
//
// An idle handler costs the server two consumers, and two requests in 30 seconds for each process: 1,000 handlers cost
// 133 messages a second for each process. A look for overdue messages is about four requests, and one for each message
// that it reads. After a crash of the server that has a stream without replicas, in a cluster
// whose other servers run, a process notices up to 32 seconds late that it must ask again.
//
// The stream of the retries cannot be a mirror or a source. It cannot have a limit, a subject transform, DenyDelete or
// the PersistMode async. Connect refuses it. Limit the account instead, which refuses new messages. JetStream domains
// other than that of the connection are not supported.
//
// All servers of a cluster need NATS 2.12 or later. Where an older one leads the stream, Connect returns an error, and
// a copy is held until a newer one leads it.
package natsretry
