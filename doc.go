// Package watermillretry has no code. These are the packages of the module, in the order in which an app meets them.
//
// To retry:
//
//   - config connects to RabbitMQ, for apps on watermill-amqp v2; config/amqp3, a module of its own, for those on v3
//   - backends/redisretry, backends/natsretry, backends/postgresretry and backends/kafkaretry, modules of their own,
//     connect to other servers; relay, to any Pub/Sub of Watermill
//   - backoff has the schedules, and the errors with which a handler asks for a delay, or for none
//   - retry has what an app names on every backend: the policy with its rules, the options of a handler, the failure
//     record, the outcomes, the Connection and its health
//   - rabbitmq has the settings of a connection to RabbitMQ, rabbitmq/topology what is declared there, and
//     rabbitmq/publish the errors of its publisher
//   - middleware has the key for Watermill's Deduplicator
//
// To test, and for effects that happen once:
//
//   - retrytest runs an app's retries in virtual time; retrytest/rabbit is a RabbitMQ in memory
//   - inbox makes effects in PostgreSQL happen once; inbox/pgxinbox, a module of its own, the same with pgx
//
// To operate:
//
//   - observe, a module of its own, has metrics and traces
//   - letters has what dead letters are on every backend, rabbitmq/deadletter reads those of RabbitMQ, and compares a
//     broker with what apps declare, letters/relayletters reads those of a relay, and letters/page is a page with them
//   - cmd/wmretry, a module of its own, is a command for all of these
package watermillretry
