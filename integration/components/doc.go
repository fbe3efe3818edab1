// Package components tests the retries of handlers that Watermill's components add: command and event processors, and metrics.
// It is in this module because of what the components depend on. No test here needs a broker.
package components
