// Package drift compares what apps declare on RabbitMQ with what is there, and declares what is missing. It is for a
// deployment, a check in CI, or an operator's tool. The command wmretry uses it for `topology plan` and `apply`.
//
// It reads arguments, bindings and policies by the management API: AMQP 0-9-1 has no method to read them.
package drift
