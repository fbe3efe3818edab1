// Package rabbitmq builds the RabbitMQ side of tiered retries around an app's own watermill-amqp configuration. It does not import
// watermill-amqp. Apps import one of its edges, config for watermill-amqp v2 or configamqp3 for v3, whose types are those of this
// package. The documentation of both edges is here:
//
//   - BuilderConfig: the options
//   - Connect, which returns a Connection: handlers, publisher and health of a whole app, over two connections to the broker
//   - Builder: the parts, for apps with watermill-amqp's own subscriber
//
// What the broker gets does not depend on the major version, so apps on v2 and v3 can share queues, tiers and dead letters.
// Package topology describes it.
package rabbitmq
