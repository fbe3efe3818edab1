package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// TestMain: the processes of a session are this program.
func TestMain(m *testing.M) {
	child.Main(roles)
	os.Exit(m.Run())
}

func TestLedgerCountsByIdentity(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	began := time.Unix(0, 100*ms)
	l := newLedger(4)
	for i := range int64(4) {
		l.add(call{message: i, at: 200 * ms})
	}
	l.add(call{0, 1, 1205 * ms})
	for range 2 { // message 1 is doubled, so that messages 1 and 2 do not cancel each other out
		l.add(call{1, 1, 1300 * ms})
	}
	l.add(call{3, 1, 1198 * ms})
	l.add(call{3, 0, 1199 * ms})
	took, err := l.took(began)
	require.EqualError(t, err, "lost=1 of 4 messages\nearly=1 of 4 messages")
	assert.Equal(t, 2, l.Twice)
	assert.Equal(t, 1200*time.Millisecond, took)

	l.read("2 1 1200000000")
	l.read("4 0 1300000000")
	l.read("no call")
	l.add(call{2, 2, 0})
	_, err = l.took(began)
	require.EqualError(t, err, "early=1 of 4 messages\nforeign=3 of 4 messages")
	require.NoError(t, l.Wait(0, nil), "all are back")

	l = newLedger(1)
	l.add(call{0, 1, 1300 * ms})
	_, err = l.took(began)
	require.EqualError(t, err, "early=1 of 1 messages", "it never failed")
}

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
			_, err := find(entry.Name)
			require.NoError(t, err)
		}
	}
}

// TestSessions: on real servers no message is lost or early, by hand and with the library.
func TestSessions(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			r := &run{bench: &bench{}, backend: b, question: t.Name()}
			for _, side := range []sideName{ownSide, handSide} {
				took, err := r.play(t.Context(), side, 100)
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
