package letters

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

// reasons are the normalised reasons, each with texts of errors that differ in nothing else.
var reasons = map[string][]string{
	"dial tcp <ip>:<n>: connect: connection refused": {
		"dial tcp 10.0.0.7:5432: connect: connection refused", "dial tcp [2001:db8::beef]:6432: connect: connection refused",
		"dial tcp [::1]:5432: connect: connection refused", "dial tcp [fe80::1%eth0]:80: connect: connection refused",
	},
	"read tcp <ip>:<n>-><ip>:<n>: i/o timeout": {
		"read tcp 127.0.0.1:45678->127.0.0.1:5672: i/o timeout", "read tcp [::1]:45678->[::1]:5672: i/o timeout",
	},
	"lookup db.internal on <ip>:<n>: no such host": {"lookup db.internal on 127.0.0.53:53: no such host"},
	`Post "https://bank.example/v1/charge": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`: nil,
	"write tcp <ip>:<n>: use of closed network connection":                                                              {"write tcp 192.168.0.12:1024: use of closed network connection"},
	`pq: duplicate key value violates unique constraint "orders_pkey" (SQLSTATE <n>)`: {
		`pq: duplicate key value violates unique constraint "orders_pkey" (SQLSTATE 23505)`,
	},
	"Error <n> (<n>): Duplicate entry '<n>' for key 'orders.PRIMARY'": {
		"Error 1062 (23000): Duplicate entry '4711' for key 'orders.PRIMARY'", "Error 1062 (23000): Duplicate entry '9' for key 'orders.PRIMARY'",
	},
	"ERROR: deadlock detected: Process <n> waits for ShareLock on transaction <n>": {
		"ERROR: deadlock detected: Process 4021 waits for ShareLock on transaction 812234",
	},
	"sql: no rows in result set": {"sql: no rows in result set"},
	"order <n> is unknown": {
		"order 0193a5d2-8f5c-7c1e-9a40-1f7c2f9d0001 is unknown", "order C0FFEE00-0000-4000-8000-00000000000A is unknown",
		"order 01ARZ3NDEKTSV4RRFFQ69G5FAV is unknown", "order 507f1f77bcf86cd799439011 is unknown", "order 0xc000123abc is unknown",
		"order 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 is unknown", "order a_1 is unknown",
		"order 1 is unknown", "order 18446744073709551616 is unknown", "order  7\tis\n unknown ",
	},
	"order-<n>: gone":       {"order-17: gone", "order-1234567: gone", "order-1a2b3c4d: gone", "order-0193a5d2-8f5c-7c1e-9a40-1f7c2f9d0001: gone"},
	"gone after <n>":        {"gone after 5s", "gone after 1.5s", "gone after 1m30s", "gone after 2h0m0.123s", "gone after 150µs", "gone after 10ms", "gone after 3"},
	"too large: <n> of <n>": {"too large: 10MiB of 4096", "too large: 1.5GB of 1e6", "too large: 4 of 3.25", "too large: 12KiB of 100000bytes"},
	"expired at <time>":     {"expired at 2026-01-02T03:04:05Z", "expired at 2026-01-02T03:04:05.123456789+02:00", "expired at 2026-01-02 03:04:05", "expired at 2026/01/02 03:04", "expired at 2026-01-02", "expired at 03:04:05.250", "expired at " + time.Unix(1, 5).UTC().String(), "expired at Fri, 02 Jan 2026 03:04:05 GMT", "expired at 02 Jan 26 03:04:05 +0100"},
	"panic: index out of range [<n>] with length <n>":                                 {"panic: index out of range [5] with length 3"},
	"unexpected status <n>":                                                           {"unexpected status 503"},
	"json: cannot unmarshal string into Go struct field Order.amount of type float64": nil,
	"invalid character 'x' looking for beginning of value":                            {"invalid character 'x' looking for beginning of value"},
	"EOF": {"EOF", " EOF "}, "": {"", " \n"},
	"bill: panic occurred: boom": {
		"bill: panic occurred: boom, stacktrace: \ngoroutine 7 [running]:\nmain.bill()", "bill: panic occurred: boom, stacktrace: \ngoroutine 9 [running]:\n",
	},
	"naïve café <n>": {"naïve café 7", "naïve café 8"},
}

func TestNormalise(t *testing.T) {
	t.Parallel()
	for want, texts := range reasons {
		for _, text := range texts {
			assert.Equal(t, want, normalise(text), text)
		}
		if len(texts) > 0 {
			assert.Equal(t, want, normalise(want), "what is normalised stays")
		}
	}
}

// Different causes stay apart.
func TestNormaliseKeepsCausesApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, text := range []string{
		"dial tcp 10.0.0.7:5432: connect: connection refused", "dial tcp 10.0.0.7:5432: i/o timeout", "dial udp 10.0.0.7:53: i/o timeout",
		"no such user: alice", "no such user: bob", "no such user", "std::bad_alloc", "card declined", "Card declined", "a[:] is empty",
	} {
		normalised := normalise(text)
		assert.Empty(t, seen[normalised], "%s: %s", text, normalised)
		seen[normalised] = text
	}
	assert.Contains(t, seen, "std::bad_alloc")
}

func FuzzNormalise(f *testing.F) {
	for _, texts := range reasons {
		for _, text := range texts {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		normalised := normalise(text)
		if utf8.ValidString(text) {
			require.True(t, utf8.ValidString(normalised))
		}
		require.NotRegexp(t, `[0-9]`, strings.ReplaceAll(normalised, "�", ""))
	})
}

func letterOf(id, reason string, at time.Time) *Letter {
	return &Letter{ID: id, Record: retry.Record{
		Reason: reason, ErrorType: "*errors.errorString", DeadReason: retry.DeadReasonExhausted, LastFailedAt: at,
	}}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	var groups Groups
	assert.Empty(t, groups.Sorted())
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	groups.Add(letterOf("a", "order 2 is unknown", noon))
	groups.Add(letterOf("b", "no money", noon.Add(time.Hour)))
	groups.Add(letterOf("c", "order 1 is unknown", time.Time{}))
	groups.Add(letterOf("d", "order 3 is unknown", noon.Add(-time.Minute)))
	other := letterOf("e", "order 4 is unknown", noon)
	other.Record.ErrorType = "*orders.Error"
	groups.Add(other)
	groups.Add(&Letter{ID: "f"})
	cause := func(reason string) Cause {
		return Cause{DeadReason: retry.DeadReasonExhausted, ErrorType: "*errors.errorString", Reason: reason}
	}
	unknown := cause("order <n> is unknown")
	of := unknown
	of.ErrorType = "*orders.Error"
	assert.Equal(t, []Group{
		{Cause: unknown, Count: 3, First: noon.Add(-time.Minute), Last: noon, Example: "a"},
		{Count: 1, Example: "f"},
		{Cause: cause("no money"), Count: 1, First: noon.Add(time.Hour), Last: noon.Add(time.Hour), Example: "b"},
		{Cause: of, Count: 1, First: noon, Last: noon, Example: "e"},
	}, groups.Sorted(), "the largest first")
}

// Reasons of hostile or careless apps that normalise cannot group do not fill the memory.
func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	var groups Groups
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	name := func(i int) string {
		return strings.Map(func(digit rune) rune { return digit - '0' + 'a' }, strconv.Itoa(i))
	}
	for i := range 3000 {
		groups.Add(letterOf(fmt.Sprint(i), name(i), at.Add(time.Duration(i)*time.Second)))
	}
	groups.Add(letterOf("again", name(0), at))
	sorted := groups.Sorted()
	require.Len(t, sorted, 1001)
	assert.Equal(t, 2, sorted[0].Count, "a known cause is still counted")
	assert.Equal(t, Group{Count: 2000, First: at.Add(1000 * time.Second), Last: at.Add(2999 * time.Second), Example: "1000", Other: true}, sorted[1000])
	total := 0
	for i, group := range sorted {
		total += group.Count
		assert.Equal(t, i == 1000, group.Other)
	}
	assert.Equal(t, 3001, total)
}
