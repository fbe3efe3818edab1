// Package backends connects apps with retries to Pub/Subs other than RabbitMQ, and to RabbitMQ for comparison. Each
// backend has one file, which contains everything that differs between backends. Copy from it what your app needs: this
// module is not released.
//
// Package registry lists the backends. Package conformance tests that each of them keeps the same guarantees.
package backends
