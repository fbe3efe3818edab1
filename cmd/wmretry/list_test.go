package main

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

type listed struct {
	ID, Queue, Target, Kind string
	Record                  retry.Record
	Metadata                map[string]string
	HeaderTypes             map[string]string `json:"header_types"`
}

func TestList(t *testing.T) {
	t.Parallel()
	q := declare(t)
	ids := q.fill(30, func(i int, id string) amqp091.Publishing {
		record := timeout(i)
		if i%3 == 0 {
			record.Reason, record.ErrorType, record.Handler = fmt.Sprintf("customer %d does not exist", i), "*errors.errorString", "bill"
			record.DeadReason = retry.DeadReasonPermanent
		} else if record.Key = "7"; i%4 == 0 {
			record.Key = "8"
		}
		if i%10 == 0 {
			record.LastFailedAt = record.LastFailedAt.Add(-48 * time.Hour)
		}
		p := letter(id, record, []byte("{}"))
		p.Headers["customer"] = fmt.Sprint(i % 5)
		return p
	})

	r := run(t, 0, "dead", "list", q.work)
	rows := strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.Len(t, rows, 31)
	assert.Regexp(t, "^ID +FAILURES  LAST FAILURE +CAUSE +DEAD REASON +HANDLER +REASON$", rows[0])
	assert.Regexp(t, "^"+ids[0]+` +3 +\d{4}-\d\d-\d\dT\S+Z  [0-9a-f]{8}  permanent +bill +customer 0 does not exist$`, rows[1])
	assert.Regexp(t, "^"+ids[29]+" +3 ", rows[30], "the oldest is first")
	for i, row := range rows[1:] {
		reason := "dial "
		if i%3 == 0 {
			reason = "customer "
		}
		assert.Equal(t, strings.LastIndex(rows[0], "REASON"), strings.Index(row, "  "+reason)+2, "the columns are aligned: %s", row)
	}
	assert.Equal(t, r.stdout, run(t, 0, "dead", "list", q.dead).stdout, "the name of a dead-letter queue is taken as it is")
	q.await(q.dead, 30) // list removes nothing

	for _, test := range []struct {
		want int
		args []string
	}{
		{20, []string{"--error-type", "*net.OpError"}},
		{15, []string{"--key", "7"}},
		{3, []string{"--older-than", "1d"}},
		{2, []string{"--meta", "customer=3", "--handler", "bill"}},
	} {
		all := lines[listed](t, run(t, 0, append([]string{"dead", "list", q.work, "--json"}, test.args...)...).stdout)
		assert.Len(t, all, test.want, test.args)
	}

	groups := lines[group](t, run(t, 0, "dead", "list", q.work, "--group", "--json").stdout)
	require.Len(t, groups, 2)
	assert.Equal(t, group{20, "8a1adaa4", "dial <ip>: connection refused", groups[0].Example, map[string]int{"7": 15, "8": 5}}, groups[0])
	assert.Equal(t, group{10, groups[1].Cause, "customer <n> does not exist", ids[0], nil}, groups[1])
	text := run(t, 0, "dead", "list", q.work, "--group").stdout
	assert.Regexp(t, `(?m)^ +20  8a1adaa4  exhausted +\*net\.OpError +dial <ip>.*  7 \(15\), 8 \(5\) *$`, text)
	assert.Regexp(t, `(?m)^COUNT .* EXAMPLE +KEYS *$`, text)
	assert.NotContains(t, run(t, 0, "dead", "list", q.work, "--group", "--handler", "bill").stdout, "KEYS")
	assert.Regexp(t, `(?m)^ *key +8$`, run(t, 0, "dead", "show", q.work, ids[4]).stdout)
	assert.Len(t, lines[listed](t, run(t, 0, "dead", "list", q.work, "--json", "--cause", groups[1].Cause).stdout), 10)
	assert.Contains(t, run(t, 0, "dead", "show", q.work, ids[0]).stdout, groups[1].Cause)
	assert.Equal(t, 20, redriven(t, 0, "dead", "redrive", q.work, "--dry-run", "--cause", groups[0].Cause).Done)
	assert.Contains(t, run(t, 64, "dead", "list", q.work, "--cause", "1").stderr, "8 hex digits")
	assert.Contains(t, run(t, 4, "dead", "list", q.work, "--handler", "absent").stderr, "no letter in "+q.dead+" matches")
	// At last: the letters that it has taken can come back behind the others.
	assert.Len(t, lines[listed](t, run(t, 0, "dead", "list", q.work, "--json", "--limit", "7").stdout), 7)
}

// TestFullDisk: output that is lost is an error.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(3)
	for _, args := range [][]string{{"list"}, {"list", "--json"}, {"list", "--group"}, {"redrive", "--dry-run"}, {"export", "-o", "-"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		command := exec.Command(binary, append([]string{"dead", args[0], q.work}, args[1:]...)...)
		command.Env = environment(t, nil)
		var stderr strings.Builder
		command.Stdout, command.Stderr = full, &stderr
		assert.Error(t, command.Run(), "%v", args)
		assert.Contains(t, stderr.String(), "no space left on device", "%v", args)
		require.NoError(t, full.Close())
	}
	q.await(q.dead, 3)
}

// TestListOnTerminal: colours, a fixed width and a last line are for terminals only.
func TestListOnTerminal(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.fill(3, func(i int, id string) amqp091.Publishing {
		record := timeout(i)
		record.Reason = strings.Repeat("long ", 100)
		return letter(id, record, nil)
	})
	r := onTerminal(t, nil, "dead", "list", q.work).wait()
	assert.Equal(t, 0, r.code)
	assert.Regexp(t, colour, r.stdout)
	plain := colour.ReplaceAllString(r.stdout, "")
	assert.Contains(t, plain, "3 letters in "+q.dead)
	for line := range strings.Lines(plain) {
		assert.LessOrEqual(t, len([]rune(strings.TrimRight(line, "\r\n"))), 130, "the reason is cut: %q", line)
	}
	assert.Contains(t, plain, "long…")

	for _, off := range []struct{ environ, args []string }{
		{[]string{"NO_COLOR=1"}, nil}, {[]string{"TERM=dumb"}, nil}, {nil, []string{"--json"}},
	} {
		for _, args := range [][]string{{"dead", "list", q.work}, {"dead", "list", q.work, "--group"}} {
			r := onTerminal(t, off.environ, append(args, off.args...)...).wait()
			assert.NotContains(t, r.stdout, "\x1b", "%v", off)
		}
	}
	assert.NotContains(t, run(t, 0, "dead", "list", q.work).stdout, "\x1b", "a pipe")
}

// TestHostileLetters: nothing in a letter can change the terminal.
func TestHostileLetters(t *testing.T) {
	t.Parallel()
	q := declare(t)
	const hostile = "\x1b]0;owned\a\x1b[2J\u009b31m\u202e\r\x00<script>"
	q.fill(1, func(_ int, id string) amqp091.Publishing {
		record := timeout(0)
		record.Reason, record.Handler, record.ErrorType, record.Topic = hostile, hostile, hostile, hostile
		record.Key = hostile
		p := letter("id"+hostile, record, []byte(`{"text":"`+"\u009b31m\x7f"+`"}`))
		p.Headers["text"], p.Headers["key"+hostile] = hostile, amqp091.Table{"a" + hostile: "b" + hostile}
		p.AppId, p.CorrelationId = "app", "\x1b[31m"
		return p
	})
	id := lines[listed](t, run(t, 0, "dead", "list", q.work, "--json").stdout)[0].ID
	assert.Equal(t, "id"+hostile, id)
	shown := strings.Split(strings.Split(run(t, 0, "dead", "list", q.work).stdout, "\n")[1], "  ")[0]
	for _, args := range [][]string{
		{"dead", "list", q.work}, {"dead", "list", q.work, "--json"}, {"dead", "list", q.work, "--group"}, {"dead", "list", q.work, "--group", "--json"},
		{"dead", "show", q.work, shown}, {"dead", "show", q.work, shown, "--json"},
		{"dead", "redrive", q.work, "--id", shown, "--dry-run"}, {"dead", "redrive", q.work, "--note", hostile[:8], "--dry-run"},
		{"dead", "export", q.work, "-o", "-"},
	} {
		r := run(t, 0, args...)
		assert.NotRegexp(t, escape, r.stdout+r.stderr, args)
		terminal := onTerminal(t, nil, args...).wait()
		assert.Equal(t, 0, terminal.code)
		text := strings.ReplaceAll(colour.ReplaceAllString(terminal.stdout, ""), "\r\n", "\n")
		for _, bad := range []string{"\x1b]", "\x1b[2J", "\u009b", "\u202e", "\x00", "\a"} {
			assert.NotContains(t, text, bad, args)
		}
	}
	r := run(t, 4, "dead", "show", q.work, "absent\x1b[2J")
	assert.NotRegexp(t, escape, r.stderr)
}

func TestShow(t *testing.T) {
	t.Parallel()
	q := declare(t)
	bodies := []string{`{"order":1,"big":12345678901234567890}`, "a line\nand another\n", "\x00\x01\xff", ""}
	ids := q.fill(len(bodies), func(i int, id string) amqp091.Publishing {
		record := timeout(i)
		if i == 1 {
			record.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" // of the last attempt
		}
		p := letter(id, record, []byte(bodies[i]))
		p.Headers["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		p.Headers["customer"], p.Headers["count"], p.Headers["items"] = "7", int32(3), []any{"x", int64(1)}
		p.Priority, p.CorrelationId = 4, "order-7"
		return p
	})
	r := run(t, 0, "dead", "show", q.work, ids[0])
	for _, want := range []string{
		"\n  goes back to         " + q.work + "\n  kind                 given up by the retry middleware\n", "trace id             4bf92f3577b34da6a3ce929d0e0e4736\n  producer's span id   00f067aa0ba902b7",
		"dead reason          exhausted", "error type           *net.OpError", "reason               dial 10.0.0.0: connection refused",
		"priority             4", "correlation_id       order-7", "customer             string    7", "count                int32     3",
		`items                array     ["x",1]`, "Body (38 bytes, JSON)\n{\n  \"order\": 1,\n  \"big\": 12345678901234567890\n}\n",
	} {
		assert.Contains(t, r.stdout, want)
	}
	second := run(t, 0, "dead", "show", q.work, ids[1]).stdout
	assert.Contains(t, second, "(19 bytes, text)\na line\nand another\n")
	assert.Contains(t, second, "  trace id             0af7651916cd43dd8448eb211c80319c\n  span id              b7ad6b7169203331\n")
	assert.Contains(t, run(t, 0, "dead", "show", q.work, ids[2]).stdout, "(3 bytes, hex)\n00000000  00 01 ff")
	assert.Equal(t, "array", lines[listed](t, run(t, 0, "dead", "show", q.work, ids[0], "--json").stdout)[0].HeaderTypes["items"])
}

// TestNames: completion knows the queues that there are, and the error of another one names --as-is.
func TestNames(t *testing.T) {
	t.Parallel()
	q := declare(t)
	require.Eventually(t, func() bool { // the management API follows in a moment
		return strings.Contains(run(t, 0, "__complete", "dead", "list", "").stdout, q.work+"\n")
	}, patience, 100*time.Millisecond)
	assert.NotContains(t, run(t, 0, "__complete", "dead", "list", "").stdout, q.dead)
	assert.Contains(t, run(t, 0, "__complete", "dead", "list", "--as-is", "").stdout, q.dead)
	assert.NotContains(t, run(t, 0, "__complete", "dead", "list", q.work, "").stdout, q.work)
	assert.Regexp(t, "the queue does not exist.*use --as-is", run(t, 1, "dead", "list", q.work+"x").stderr)
}

// TestRefusals: the command prints what is wrong with its password or virtual host.
func TestRefusals(t *testing.T) {
	t.Parallel()
	uri, err := url.Parse(brokerURL(t))
	require.NoError(t, err)
	wrong := *uri
	wrong.User = url.UserPassword(uri.User.Username(), "wrong-horse")
	r := runWith(t, 1, []string{"AMQP_URL=" + wrong.String()}, "dead", "list", "orders")
	assert.Contains(t, r.stderr, fmt.Sprintf("check the password of %q", uri.User.Username()))
	assert.NotContains(t, r.stderr, "wrong-horse")
	wrong.User, wrong.Path, wrong.RawPath = uri.User, "/nowhere", ""
	r = runWith(t, 1, []string{"AMQP_URL=" + wrong.String()}, "dead", "list", "orders")
	assert.Contains(t, r.stderr, `check the virtual host "nowhere"`)
}
