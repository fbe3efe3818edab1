// Package postgresretry retries the messages of Watermill handlers on PostgreSQL 13 and later. A message that failed
// waits in a table until it is due, and becomes a dead letter in the same table when its retries are used up.
//
//	table watermill_orders ──► handler ── error ──► row of retry_messages, due in 5 s ──► handler
//	                                     retries used up ──► row of retry_messages, never due
//
// Connect returns a retry.Connection, and Letters the store of the dead letters.
//
// # The app's topics
//
// They are the tables of watermill-sql's Pub/Sub (v4, DefaultPostgreSQLSchema with the default offsets), which apps
// with watermill-sql's own publisher and subscriber can use too. Where this package makes the table of a topic, the
// payload is bytea. The tables keep every message, as with watermill-sql: what to delete from them is the app's choice.
//
// Only the reader is another. When a message is taken, one statement moves it past the group's offset into
// Config.Table, as a message in flight. So a process has 32 messages of a handler in flight by default, and up to
// 128 where calls are short. All processes of a group share them, a handler may run for any time, and no transaction
// and no connection lasts as long as a handler. There is no transaction of the message in its context (TxFromContext of
// watermill-sql): a handler and the deletion of its message are two transactions.
//
// watermill-sql's order lets a message be read only after all transactions have ended that began before its own, and
// that have written anything anywhere on the server: a long one delays all topics. Retries do not wait for it.
//
// # What waits
//
// A copy of a failed message is one row of Config.Table, for a delay of any length. The server computes its due time
// from its own clock, and compares it with that clock: the clocks of the app's hosts do not matter. A step of the
// server's clock, or a failover to a server with another clock, makes retries early or late by the difference.
//
// A process takes the rows that are due in batches, and skips those that another process is taking (FOR UPDATE SKIP
// LOCKED). Taking a row moves its due time to the end of a lease, which is renewed while the handler runs. Success
// deletes the row. So the messages in flight of a process that has died come again after one lease (Config.Lease, 15
// seconds), those that wait come when they are due, and nothing is left in the table of messages that have been
// handled. Where another process has taken a row, the context of its message ends at the next renewal, within a third
// of a lease. The server also ends a transaction of a process that is stopped in the middle of it, after a lease
// (idle_in_transaction_session_timeout): its locks would keep messages from other processes.
//
// # Names
//
// The handlers of a consumer group and topic have one return topic, "<Prefix>.return.<group>.<topic>", and one
// dead-letter topic, "<Prefix>.dead.<group>.<topic>": the column topic. Names that are long or have other characters
// end with a hash. The name of a handler is no part of it. An app's topic has at most 45 bytes, or 53 where the app
// only publishes to it: PostgreSQL cuts the names of tables at 63 bytes. A longer one is an error of Run or Publish.
//
// # What it costs the server
//
// An idle process executes about 13 short statements a second, whatever the number of its handlers, and an idle handler
// keeps no connection. All handlers share two looks. Each 200 ms, one reads the sequences of the app's topics: a
// message of another process comes up to that late, one of the same process at once. Each second, one reads when the
// next message of each return topic is due, so that all processes ask then; what another process gives back comes up to
// a second late. Where a long transaction delays a topic, its messages come up to a quarter of its length later.
// Without a reason, one of the app's topics is read each second, in turn; where the app's role may not read the
// sequences, ten.
//
// A retry is one INSERT, one UPDATE and one DELETE; those of several messages are combined. The last two are functions,
// each one round trip, or four where default_transaction_isolation is not "read committed". The UPDATE changes an
// indexed column, so it is not HOT, and a lower fillfactor would not help. The table is vacuumed after 1,000 dead rows
// and 2% of its rows, once in autovacuum_naptime, and keeps its size then (vacuum_truncate): the space is used again.
// Dead letters are in another index than messages that wait. A transaction that lasts long, anywhere in the database,
// keeps deleted rows from being removed; a read skips them by their due time.
//
// The database needs about 8 connections of a busy process: copies, acks, renewals and reads of the app's topics use
// two each at most, reads of return topics and looks one. Publishers of the app's own topics use one for each call.
//
// # Guarantees
//
// Publish returns nil after the server has committed the row, and a message is deleted after that. A power cut loses
// nothing where the server has fsync on (the default) and synchronous_commit is not off for the app's role. Reads,
// renewals and deletions do not wait for the disk; what a power cut undoes of them, less than a second, comes again.
// Asynchronous replicas can lose what was committed last at a failover: for copies too, set synchronous_standby_names.
//
// Delivery is at least once: a message comes twice if a lease is lost (a paused process, a server that cannot be
// reached for a lease), if a process dies between publish and delete, or if the connection breaks during a commit.
//
// A row that another program inserts on a return topic is delivered to the handler as a new message.
//
// # Rights
//
// An app whose role does not own the tables needs these. Schema makes the first two and the functions; the tables of
// the topics must exist too. Connect, Run and Publish name the GRANT that is missing.
//
//	GRANT USAGE ON SCHEMA public TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON retry_messages TO app;
//	GRANT SELECT, INSERT ON retry_messages_handlers TO app;
//	GRANT EXECUTE ON FUNCTION retry_messages_take(text[], integer[], bigint[], bigint) TO app;
//	GRANT EXECUTE ON FUNCTION retry_messages_ack(bigint[], text[]) TO app;
//	-- each topic that a handler reads
//	GRANT SELECT ON watermill_orders TO app;
//	GRANT SELECT, INSERT, UPDATE ON watermill_offsets_orders TO app;
//	-- each topic that the app publishes to; where it only reads, the second makes reads cheaper
//	GRANT INSERT ON watermill_orders TO app;
//	GRANT USAGE ON SEQUENCE watermill_orders_offset_seq TO app;
//
// # Poolers
//
// PgBouncer is tested with 1.18. Its pool_mode session needs nothing. With transaction each statement of the driver
// must be one round trip: default_query_exec_mode=cache_describe with pgx, in the connection string, also in
// database/sql; binary_parameters=yes with pq. exec and simple_protocol work where the payload's column is bytea.
// Connect, and the calls of Letters, refuse other drivers there, pgx's default too, unless two connections of the
// database are not free within 5 seconds. From 1.21 on max_prepared_statements makes that work, by PgBouncer's
// documentation; untested. Two sessions of the server are needed at least, one of them while Letters are changed. With
// statement nothing works: Connect fails. pq needs ignore_startup_parameters = extra_float_digits in each mode.
//
// # From watermill-sql
//
// The topics stay, in the format of its default schema. Give Config.Group the name of the consumer group. Its default
// group is "": copy its row in watermill_offsets_orders to one of the new group.
//
// # Other databases
//
// MySQL and MariaDB are not supported: they have no UPDATE that returns its rows, which a read needs.
package postgresretry
