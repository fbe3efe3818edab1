// Package backends connects apps with retries to other Pub/Subs than RabbitMQ: one file for each, which is all that differs
// between them. The conformance suite and the example use what is here; take from it what your app needs.
package backends
