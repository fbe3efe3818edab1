// Package rabbitmq is the RabbitMQ side of tiered retries, around an app's own configuration for watermill-amqp. It
// does not import watermill-amqp. Apps import package config for watermill-amqp v2, or config/amqp3 for v3, which
// document Connect and the builder. From this package they need Settings and Connection.
//
// What the broker gets does not depend on the major version, so apps on v2 and v3 can share queues, tiers and dead
// letters. Package topology describes it.
package rabbitmq
