package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDiscard(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(10)
	assert.Equal(t, summary{Total: 10, Done: 1, Other: 9}, redriven(t, 0, "dead", "discard", q.work, "--dry-run", "--reason", "0.4:"))

	p := onTerminal(t, nil, "dead", "discard", q.work, "--reason", "0.[0-3]:")
	p.answer("Remove 4 of 10 letters in "+q.dead+" for good, without a copy? [y]es, [n]o:", "n")
	r := p.wait()
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.stdout, "nothing is removed")
	assert.Equal(t, 10, q.count(q.dead))

	p = onTerminal(t, nil, "dead", "discard", q.work, "--reason", "0.[0-3]:")
	p.answer("[n]o", "y")
	assert.Equal(t, 0, p.wait().code)
	q.await(q.dead, 6)

	// What dies while the command asks is not removed.
	p = onTerminal(t, nil, "dead", "discard", q.work, "--limit", "0")
	p.await(p.stdout, "Remove 6 of 6 letters")
	q.timeouts(1)
	p.answer("[n]o", "y")
	r = p.wait()
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.stdout, "beyond the number that you confirmed: they stay")
	q.await(q.dead, 1)
	q.timeouts(5)

	file := filepath.Join(t.TempDir(), "letters.jsonl")
	p = onTerminal(t, nil, "dead", "discard", q.work, "--limit", "2", "--export", file)
	p.answer("with a copy in "+file, "y")
	assert.Equal(t, 0, p.wait().code)
	q.await(q.dead, 4)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, 2, strings.Count(string(content), "\n"))
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	r = run(t, 64, "dead", "discard", q.work, "--yes", "--export", file)
	assert.Contains(t, r.stderr, "may have the only copy of other letters")
	assert.Equal(t, 4, q.count(q.dead))
	p = onTerminal(t, nil, "dead", "discard", q.work)
	p.await(p.stdout, "[n]o")
	require.NoError(t, p.command.Process.Signal(os.Interrupt))
	assert.Equal(t, 130, p.wait().code)
	assert.Equal(t, 4, q.count(q.dead))
	r = run(t, 1, "dead", "discard", q.work, "--yes", "--export", filepath.Join(t.TempDir(), "no", "folder"))
	assert.NotContains(t, r.stdout, "letters are in")
	assert.Equal(t, 4, redriven(t, 0, "dead", "discard", q.work, "--yes").Done)
	assert.Equal(t, 0, q.count(q.dead))
}

// TestExportAndImport: every byte, property and typed header comes back.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	q := declare(t)
	at := time.Now().Truncate(time.Second)
	q.fill(3, func(i int, id string) amqp091.Publishing {
		p := letter(id, timeout(i), []byte{0, 1, 0xff, byte(i), '\n', '"'})
		p.ContentEncoding, p.Priority, p.CorrelationId, p.ReplyTo = "gzip", 7, "c\x1b", "reply"
		p.MessageId, p.Timestamp, p.Type, p.AppId = "m", at, "type", "app"
		typed := amqp091.Table{
			"bool": true, "byte": byte(200), "int8": int8(-3), "int16": int16(-300), "int32": int32(-70000), "int64": int64(1) << 60, "float32": float32(1.5),
			"float64": 0.1, "bytes": []byte{0, 0xff}, "time": at, "decimal": amqp091.Decimal{Scale: 2, Value: 12345}, "void": nil,
			"array": []any{"x", int64(2), amqp091.Table{"deep": true}}, "table": amqp091.Table{"a": int32(1), "b": []any{}}, "text": "\x00 \xff not UTF-8",
		}
		for key, value := range typed {
			p.Headers[key] = value
		}
		return p
	})
	folder := t.TempDir()
	first, second := filepath.Join(folder, "first.jsonl"), filepath.Join(folder, "second.jsonl")
	r := run(t, 0, "dead", "export", q.work, "-o", first)
	assert.Contains(t, r.stdout, "3 letters of "+q.dead+" written to "+first)
	assert.Contains(t, run(t, 64, "dead", "export", q.work, "-o", first).stderr, "may have the only copy of other letters")
	run(t, 4, "dead", "export", q.work, "-o", second, "--handler", "absent")
	require.NoError(t, os.RemoveAll(second))
	content, err := os.ReadFile(first)
	require.NoError(t, err)
	r = run(t, 0, "dead", "export", q.work, "-o", "-")
	assert.Equal(t, sortedLines(content), sortedLines([]byte(r.stdout)))

	_, was := q.take(q.dead)
	assert.Equal(t, summary{Total: 3, Done: 3}, redriven(t, 0, "dead", "import", first, "--dry-run"))
	assert.Equal(t, 0, q.count(q.dead))
	r = run(t, 0, "dead", "import", first)
	assert.Regexp(t, ` 3  put back, and confirmed( \(\d+/s\))?\n +3  letters were read from the file\n`, r.stdout)
	run(t, 0, "dead", "export", q.work, "-o", second)
	again, err := os.ReadFile(second)
	require.NoError(t, err)
	assert.Equal(t, sortedLines(content), sortedLines(again))
	_, is := q.take(q.dead)
	require.Len(t, is, len(was))
	for _, all := range [][]amqp091.Delivery{was, is} { // an import does not keep the order
		slices.SortFunc(all, func(a, b amqp091.Delivery) int { return bytes.Compare(a.Body, b.Body) })
	}
	for i := range was {
		for _, own := range []string{"x-delivery-count", "x-acquired-count", "retry_publish_id"} { // of the broker, and of the publisher
			delete(was[i].Headers, own)
			delete(is[i].Headers, own)
		}
		assert.Equal(t, was[i].Headers, is[i].Headers)
		assert.Equal(t, was[i].Body, is[i].Body)
		assert.Equal(t, []any{was[i].Priority, was[i].Timestamp, was[i].CorrelationId, was[i].ContentEncoding, was[i].DeliveryMode, was[i].Type},
			[]any{is[i].Priority, is[i].Timestamp, is[i].CorrelationId, is[i].ContentEncoding, is[i].DeliveryMode, is[i].Type})
	}

	other := declare(t)
	run(t, 0, "dead", "import", first, "--queue", other.work)
	assert.Equal(t, 3, other.count(other.dead))
	require.NoError(t, os.WriteFile(second, append(content, "{\"half\""...), 0o600))
	assert.Contains(t, run(t, 1, "dead", "import", second).stderr, "line 4")
	assert.Contains(t, run(t, 1, "dead", "import", second, "--dry-run").stdout, "dry run that stopped early")
	assert.Equal(t, 3, q.count(q.dead))
	assert.Contains(t, run(t, 1, "dead", "import", filepath.Join(folder, "none")).stderr, "no such file")
}

// varying are headers of the broker and of the publisher, in an export.
var varying = regexp.MustCompile(`,"(x-delivery-count|x-acquired-count|retry_publish_id)":\{[^}]*\}`)

func sortedLines(export []byte) []string {
	return slices.Sorted(strings.Lines(varying.ReplaceAllString(string(export), "")))
}
