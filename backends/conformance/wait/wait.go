// Package wait waits in the tests of the backends for what takes a while.
package wait

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience is how long a test waits. A busy machine takes minutes.
const Patience = 3 * time.Minute

// Until waits until something is so. The words say what.
func Until(t testing.TB, is func() bool, words string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(t, "it has not come to this: "+fmt.Sprintf(words, args...))
		}
	}
}

// For waits for an event. The words say which.
func For[E any](t testing.TB, events <-chan E, words string) (event E) {
	t.Helper()
	select {
	case event = <-events:
	case <-time.After(Patience):
		require.FailNow(t, "it has not come to this: "+words)
	}
	return event
}
