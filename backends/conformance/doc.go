// Package conformance tests that each backend keeps the same guarantees. It has tests only: `make test-backends` runs
// them.
package conformance
