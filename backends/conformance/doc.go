// Package conformance holds every backend to the same promises. It has tests only: `make test-backends`.
package conformance
