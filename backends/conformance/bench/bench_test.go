package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// TestClaimsOfTheList: each row of the list is a claim that the program can read, and that it measures.
func TestClaimsOfTheList(t *testing.T) {
	t.Parallel()
	all := claims.Of(claims.List, heading)
	require.Len(t, all, strings.Count(claims.Section(claims.List, heading), "\n| `backend_"))
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var code string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		code += string(text)
	}
	for _, c := range all {
		assert.Contains(t, code, `"`+c.Name+`"`, c.Name)
	}
}

// TestEachBackendIsMeasured: those with a server that this repository starts.
func TestEachBackendIsMeasured(t *testing.T) {
	t.Parallel()
	for _, entry := range registry.All() {
		if entry.Start != nil {
			assert.True(t, slices.ContainsFunc(backends, func(b backend) bool { return b.name == entry.Name }), entry.Name)
		}
	}
}

// TestSessions: on real servers no message is lost or early, by hand and with the library.
func TestSessions(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			r := &run{bench: &bench{}, backend: b, question: t.Name()}
			for _, s := range sides {
				took, err := r.play(t.Context(), s, 100)
				require.NoError(t, err)
				assert.GreaterOrEqual(t, took, tier)
			}
		})
	}
}

// TestInboxStatements: with an inbox a message needs one statement more than with a transaction by hand. Each effect is
// counted.
func TestInboxStatements(t *testing.T) {
	t.Parallel()
	server, err := postgresBackend.start(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	const messages = 100
	for side, want := range map[bill]int{withTransaction: 3, withInbox: 4} { // with BEGIN and COMMIT
		var counter statementCounter
		_, err := side.measure(server.URL, messages, &counter)
		require.NoError(t, err)
		const alsoWarmsUp = messages + 10*inboxCalls
		assert.InDelta(t, want*alsoWarmsUp, counter.count.Load(), 50, "%s: the tables are made, and old rows deleted", side)
	}
}

// statementCounter counts what pgx sends to the server, BEGIN and COMMIT included.
type statementCounter struct{ count atomic.Int64 }

func (s *statementCounter) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData,
) context.Context {
	s.count.Add(1)
	return ctx
}

func (*statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
