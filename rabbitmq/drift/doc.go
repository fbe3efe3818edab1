// Package drift compares what apps declare on RabbitMQ with what is there, and declares what is missing. It is for a
// deployment, a check in CI, or an operator's tool. The command wmretry uses it for `topology plan` and `apply`.
//
// With the management API it reads arguments, bindings and policies. Without it, it finds missing exchanges and
// queues by passive declarations, and reads the arguments of queues from the broker's refusals (406
// PRECONDITION_FAILED): AMQP 0-9-1 has no method to read them. Then it cannot see bindings and policies.
package drift
