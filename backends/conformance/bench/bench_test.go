package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
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
	const ms, delay = int64(time.Millisecond), int64(time.Second)
	began := time.Unix(0, 100*ms)
	fails := func(message, at int64) call { return call{Message: message, At: at, Delay: delay} }
	returns := func(message, at int64) call { return call{Message: message, Failures: 1, At: at} }
	l := newLedger(4)
	for i := range int64(4) {
		l.add(fails(i, 200*ms))
	}
	l.add(returns(0, 1205*ms))
	for range 2 { // message 1 is doubled, so that messages 1 and 2 do not cancel each other out
		l.add(returns(1, 1300*ms))
	}
	l.add(returns(3, 1198*ms))
	l.add(fails(3, 1199*ms)) // another copy is delivered
	r, err := l.result(began)
	require.EqualError(t, err, "lost=1 of 4 messages\nearly=1 of 4 messages")
	assert.Equal(t, 2, l.Twice)
	assert.Equal(t, 1200*time.Millisecond, r.took)
	assert.Equal(t, []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, -2 * time.Millisecond}, r.late)

	l.add(returns(2, 1200*ms))
	l.add(fails(4, 1300*ms))
	l.add(call{Message: 2, Failures: 2})
	_, err = l.result(began)
	require.EqualError(t, err, "early=1 of 4 messages\nforeign=2 of 4 messages")
	require.NoError(t, l.Wait(0, nil), "all are back")

	l = newLedger(1)
	l.add(returns(0, 1300*ms)) // the call that fails is on the way from another process
	l.add(fails(0, 200*ms))
	r, err = l.result(began)
	require.NoError(t, err)
	assert.Equal(t, []time.Duration{100 * time.Millisecond}, r.late)
	l = newLedger(1)
	l.add(returns(0, 1300*ms))
	_, err = l.result(began)
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
	var late, listed []string
	for _, b := range backends {
		late = append(late, lateOf(b))
	}
	for _, c := range all {
		if listed = append(listed, c.Name); !slices.Contains(late, c.Name) {
			assert.Contains(t, code, `"`+c.Name+`"`, c.Name)
		}
	}
	assert.Subset(t, listed, late)
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

// TestSessions: on real servers no message is lost, early or left, by hand and with two processes of the library.
func TestSessions(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			entry, err := registry.Find(b.name)
			require.NoError(t, err)
			server, err := entry.Start(t.Context())
			require.NoError(t, err)
			t.Cleanup(server.Stop)
			r := &run{bench: &bench{}, backend: b, server: server.URL, question: t.Name()}
			for _, s := range []session{byHand, pair} {
				s.messages = 100
				result, err := r.play(s)
				require.NoError(t, err)
				assert.Len(t, result.late, 100)
				assert.Zero(t, result.left)
				assert.GreaterOrEqual(t, result.took, tier)
			}
		})
	}
}

// TestInboxStatements: with an inbox a message needs one statement more than with a transaction and an outbox by hand.
// Each effect is counted.
func TestInboxStatements(t *testing.T) {
	t.Parallel()
	entry, err := registry.Find(postgresBackend.name)
	require.NoError(t, err)
	server, err := entry.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	const messages = 100
	for side, want := range map[bill]int{
		{}: 3, {inbox: true}: 4, {produces: true}: 4, {inbox: true, produces: true}: 5, // with BEGIN and COMMIT
	} {
		for _, side.pgx = range []bool{false, true} {
			var counter statementCounter
			_, err := side.measure(server.URL, messages, &counter)
			require.NoError(t, err)
			const alsoWarmsUp = messages + 10*inboxCalls
			assert.InDelta(t, want*alsoWarmsUp, counter.count.Load(), 50, "%s: the tables are made, and old rows deleted", side)
		}
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

// TraceBatchQuery counts each statement of a batch.
func (s *statementCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	s.count.Add(1)
}

func (*statementCounter) TraceBatchStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData,
) context.Context {
	return ctx
}

func (*statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
