// Package major holds watermill-amqp and the library's builder for it in the major version that the tests are built
// for: v2, or v3 with the build tag amqpv3. Its packages have the names of the real ones, so that a test looks like
// an app of either major.
package major
