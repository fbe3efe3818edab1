package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWrongUse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"command", []string{"daed"}, "did you mean `wmretry dead`?"},
		{"subcommand", []string{"dead", "redive", "orders"}, "did you mean `wmretry dead redrive orders`?"},
		{"subcommand of dead", []string{"redrive", "orders"}, "did you mean `wmretry dead redrive orders`?"},
		{"flag", []string{"dead", "list", "orders", "--colour"}, "unknown flag: --colour"},
		{"no queue", []string{"dead", "list"}, "needs QUEUE, and has 0 arguments"},
		{"no time", []string{"order", "status", "orders", "--wait", "0s"}, "--wait is 0s"},
		{"empty queue", []string{"order", "status", ""}, "QUEUE is empty"},
		{"no end", []string{"key", "pause", "7"}, `--for is "": it must be above 0 and at most 30d`},
		{"too long", []string{"key", "pause", "7", "--for", "31d"}, `--for is "31d": it must be above 0 and at most 30d`},
		{"no calls", []string{"key", "limit", "7", "0", "--for", "1h"}, `CALLS is "0": it must be a number of 1 or more`},
		{"empty key", []string{"key", "resume", ""}, "KEY is empty"},
		{"too much", []string{"dead", "list", "orders", "invoices"}, "needs QUEUE, and has 2 arguments"},
		{"regexp", []string{"dead", "list", "orders", "--reason", "a(b"}, `missing closing ) at "a(b"`},
		{"regexp and no queue", []string{"dead", "list", "--reason", "("}, "needs QUEUE, and has 0 arguments"},
		{"several faults", []string{"dead", "list", "orders", "--reason", "(", "--older-than", "x"}, "not a duration above 0, such as 90s, 10m, 36h or 2d\n--reason is no regular expression"},
		{"age", []string{"dead", "list", "orders", "--older-than", "yesterday"}, `"yesterday" is not a duration above 0, such as`},
		{"both ages", []string{"dead", "list", "orders", "--older-than", "2d", "--newer-than", "3h"}, "--newer-than must be the longer one"},
		{"metadata", []string{"dead", "list", "orders", "--meta", "customer"}, "it must be key=value"},
		{"metadata twice", []string{"dead", "list", "orders", "--meta", "a=1", "--meta", "a=2"}, `--meta names "a" twice with different values`},
		{"metadata and key", []string{"dead", "list", "orders", "--meta", "retry_key=a", "--key", "b"}, `--key and --meta name "retry_key" twice with different values`},
		{"rate", []string{"dead", "redrive", "orders", "--rate", "fast"}, `"fast" is not a number of letters in a time, such as 50/s`},
		{"no rate", []string{"dead", "redrive", "orders", "--rate", "0/s"}, `"0/s" is not a number of letters in a time`},
		{"share", []string{"dead", "redrive", "orders", "--max-redead", "120%"}, "such as 5% or 0.05"},
		{"not a number", []string{"dead", "redrive", "orders", "--canary", "ten"}, `--canary is "ten": it must be a whole number from 0 to 9`},
		{"negative", []string{"dead", "redrive", "orders", "--limit", "-1"}, "--limit is -1: it must not be negative"},
		{"wait without canary", []string{"dead", "redrive", "orders", "--canary-wait", "5s"}, "needs --canary"},
		{"export to nowhere by cause", []string{"dead", "export", "orders", "--cause", "zz"}, `--cause is "zz"`},
		{"export to nowhere", []string{"dead", "export", "orders"}, "needs -o FILE"},
		{"discard without a terminal", []string{"dead", "discard", "orders"}, "use --yes, and --export FILE to keep a copy. --dry-run"},
		{"discard with a copy", []string{"dead", "discard", "orders", "--export", "absent"}, "use --yes. --dry-run"},
		{"certificate without key", []string{"dead", "list", "orders", "--cert-file", "x.pem"}, "--cert-file and --key-file belong together"},
		{"redaction without a test", []string{"dead", "show", "orders", "order-1", "--redact", "email"}, "need --go-test"},
		{"test without a name", []string{"dead", "show", "orders", "order-1", "--go-test", ""}, "--go-test is empty"},
		{"address of Redis", []string{"dead", "list", "orders", "--url", "redis://"}, "--url is not an address of Redis: it must be like redis://default@host:6379"},
		{"no command of RabbitMQ, with its flags", []string{"tiers", "prune", "--queue", "a", "--url", "redis://127.0.0.1:1"}, "tiers is a command for RabbitMQ"},
		{"no flag of RabbitMQ", []string{"dead", "list", "orders", "--url", "nats://127.0.0.1:1", "--any-limit"}, "unknown flag: --any-limit"},
		{"no flag of groups", []string{"dead", "list", "orders", "--consumer-group", "billing"}, "unknown flag: --consumer-group"},
		{"no tier", []string{"tiers", "drain", "orders"}, "needs QUEUE and TIER"},
		{"file and schedule", []string{"topology", "plan", "--file", "x", "--schedule", "bad"}, "--file and --queue, --schedule, "},
		{"tier", []string{"tiers", "drain", "orders", "60s", "--rate", "x"}, "want the spelling"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := runWith(t, 64, []string{"AMQP_URL=amqp://127.0.0.1:1/"}, test.args...)
			assert.Equal(t, 1, strings.Count(r.stderr, test.want), r.stderr)
			assert.Empty(t, r.stdout)
		})
	}
}

// TestHelp: it has the words of its backend, and no others.
func TestHelp(t *testing.T) {
	t.Parallel()
	r := run(t, 0, "--help")
	for _, want := range []string{"Exit codes:", "130  interrupted by Ctrl-C", "AMQP_URL"} {
		assert.Contains(t, r.stdout, want)
	}
	for _, command := range []string{"list", "show", "redrive", "discard", "export", "import"} {
		r := run(t, 0, "dead", command, "--help", "--url", "redis://127.0.0.1:1")
		assert.Contains(t, r.stdout, "Examples:\n  ", command)
		for _, foreign := range []string{"work queue", "orphan", "on PostgreSQL", "QUEUE"} {
			assert.NotContains(t, r.stdout, foreign, command)
		}
	}
	assert.Contains(t, run(t, 0, "dead", "list", "--reason", "(", "--help").stdout, "Examples:\n  ")
	assert.Contains(t, run(t, 0, "dead", "list", "--help", "--url", "postgres://127.0.0.1:1/a").stdout, "--table")
}

// TestPasswords: a password is in no argument, no error and no help.
func TestPasswords(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse"
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	for _, test := range []struct {
		name    string
		code    int
		environ []string
		args    []string
		want    string
	}{
		{"in --management", 64, nil, []string{"dead", "list", "orders", "--management", "http://shop:" + secret + "@127.0.0.1:1"}, "AMQP_MANAGEMENT_URL"},
		{"as an argument", 64, nil, []string{"amqp://shop:" + secret + "@127.0.0.1:1/"}, "has no command"},
		{"none", 64, nil, []string{"dead", "list", "orders", "--url", "amqp://shop@127.0.0.1:1/"}, "names a user and no password"},
		{"token of NATS", 64, []string{"WMRETRY_URL=nats://" + secret + "@127.0.0.1:1"}, []string{"status"}, "names a user and no password"},
		{"from a file", 1, nil, []string{"dead", "list", "orders", "--url", "amqp://shop@127.0.0.1:1/", "--password-file", file}, "cannot connect to RabbitMQ at 127.0.0.1:1"},
		{"help", 0, []string{"AMQP_URL=amqp://shop:" + secret + "@127.0.0.1:1/"}, []string{"dead", "list", "--help"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := runWith(t, test.code, test.environ, test.args...)
			assert.Contains(t, r.stderr, test.want)
			assert.NotContains(t, r.stdout+r.stderr, secret)
		})
	}
}

// TestUnreachable: the error names the backend that the address was taken for, and has no password.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse"
	for backend, address := range map[string]string{
		"RabbitMQ at 127.0.0.1:1":          "amqp://shop:" + secret + "@127.0.0.1:1/",
		"Redis at 127.0.0.1:1":             "redis://shop:" + secret + "@127.0.0.1:1/2",
		"Redis at 127.0.0.1:1,127.0.0.1:2": "redis://shop:" + secret + "@127.0.0.1:1,127.0.0.1:2",
		"NATS at 127.0.0.1:1":              "nats://shop:" + secret + "@127.0.0.1:1",
		"PostgreSQL at 127.0.0.1:1":        "postgres://shop:" + secret + "@127.0.0.1:1/shop?sslmode=disable",
		"Kafka at 127.0.0.1:1,127.0.0.1:2": "kafka://shop:" + secret + "@127.0.0.1:1,127.0.0.1:2",
	} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			r := runWith(t, 1, []string{"WMRETRY_URL=" + address}, "dead", "list", "orders", "-v")
			assert.Contains(t, r.stderr, "cannot connect to "+backend+": ")
			assert.Regexp(t, `is `+strings.Fields(backend)[0]+` running there, and is the port that of `, r.stderr)
			assert.NotContains(t, r.stderr, secret)
			r = runWith(t, 64, nil, "dead", "list", "orders", "--url", address)
			assert.Contains(t, r.stderr, "--url has a password")
			assert.NotContains(t, r.stderr, secret)
		})
	}
	r := runWith(t, 64, nil, "dead", "list", "orders", "--url", "postgres://127.0.0.1/shop?password="+secret)
	assert.Contains(t, r.stderr, "has a password in its parameters")
	assert.NotContains(t, r.stderr, secret)
}

func TestDeadReasonsAreCompleted(t *testing.T) {
	t.Parallel()
	r := run(t, 0, "__complete", "dead", "redrive", "orders", "--dead-reason", "")
	assert.Contains(t, r.stdout, "exhausted\npermanent\n")
}

// TestUIForOtherMachines: a page that other machines reach answers to no name of a foreign page either.
func TestUIForOtherMachines(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "ui", "--listen", "0.0.0.0:0", "--allow-remote", "--host", "ops.example")
	p.await(p.stdout, "Ctrl-C stops it")
	p.await(p.stderr, "the page has no login")
	port := regexp.MustCompile(`:(\d+)/\n`).FindStringSubmatch(p.stdout.String())
	require.NotNil(t, port, p.stdout)
	for host, want := range map[string]int{
		"127.0.0.1": 200, "10.1.2.3": 200, "localhost": 200, "ops.example": 200, "evil.example": 403,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port[1]+"/", nil)
		require.NoError(t, err)
		r.Host = host + ":" + port[1]
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, want, answer.StatusCode, host)
	}
}
