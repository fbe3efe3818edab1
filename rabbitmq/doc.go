// Package rabbitmq has the settings of tiered retries on RabbitMQ that do not depend on the version of watermill-amqp.
// Apps import package config for watermill-amqp v2, or config/amqp3 for v3, which document Connect and the builder.
//
// What the broker gets does not depend on the major version, so apps on v2 and v3 can share queues, tiers and dead
// letters. Package topology describes it.
package rabbitmq
