package cause_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/cause"
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
			assert.Equal(t, want, cause.Normalise(text), text)
		}
		if len(texts) > 0 {
			assert.Equal(t, want, cause.Normalise(want), "what is normalised stays")
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
		normalised := cause.Normalise(text)
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
		normalised := cause.Normalise(text)
		if utf8.ValidString(text) {
			require.True(t, utf8.ValidString(normalised))
		}
		require.NotRegexp(t, `[0-9]`, strings.ReplaceAll(normalised, "�", ""))
	})
}

// Operators have the IDs in tickets and alerts: they stay.
func TestIDsStay(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "8801ed07", cause.ID("*errors.errorString", cause.Normalise("card 7 was declined")))
	assert.Equal(t, "6e340b9c", cause.ID("", ""))
	assert.NotEqual(t, cause.ID("a", "b"), cause.ID("ab", ""))
}
