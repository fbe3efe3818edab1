// Package model is a model of RabbitMQ that speaks AMQP 0-9-1 to an unmodified client, for simulations in virtual time.
// It shows what a client does when a broker behaves as described here. It never shows what a broker does: for that
// there are real brokers.
//
// A Broker lives in memory. Its Dial is the Dial of an amqp091.Config. All its random choices come from a seed.
package model
