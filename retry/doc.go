// Package retry defines the types that an app names on every backend: the policy with its rules and its breaker, the
// options of a handler, the failure record, the outcomes and their events, and the Connection with its health. They are
// data: the retry middleware acts on them.
package retry
