// Package components tests the retries of handlers that Watermill's components add: command and event processors, and
// metrics. It is not in the root module, because the components have dependencies of their own. No test here needs a
// broker.
package components
