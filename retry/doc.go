// Package retry has what an app names when it retries failed messages, on every backend: the rules and the breaker of a
// handler, the failure record, the outcomes and their events, and the health of a connection. It is data. Package
// middleware acts on it.
package retry
