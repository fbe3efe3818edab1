package command

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
)

// TestEachVerbOnEachBackend runs the verbs in a row, with one app on one server. Those on RabbitMQ are in cmd/wmretry.
func TestEachVerbOnEachBackend(t *testing.T) {
	t.Parallel()
	onEach(t, func(o *operator) {
		var all, odds []string
		var messages []*message.Message
		for i := range 30 {
			msg := message.NewMessage(fmt.Sprintf("order-%02d", i), fmt.Appendf(nil, `{"order":%d,"email":"ann@example.com"}`, i))
			msg.Metadata["customer"] = fmt.Sprint(i % 5)
			all, messages = append(all, msg.UUID), append(messages, msg)
			if isOdd(msg.UUID) {
				odds = append(odds, msg.UUID)
			}
		}
		messages[2].Payload = []byte("\x00\xff\x1b]0;owned\a")
		stop := o.run()
		o.publish(messages...)
		o.awaitLetters(all...)
		for _, verb := range []struct {
			name string
			test func(all, odds []string)
		}{
			{"list", o.list}, {"group", o.group}, {"show", o.show}, {"go-test", o.goTest}, {"export", o.export},
			{"status", o.status}, {"doctor", o.doctor}, {"refusals", o.refusals}, {"redrive", o.redrive}, {"discard", o.discard},
			{"hostile", o.hostile}, {"many", o.many}, {"waits", func(_, _ []string) { o.waits(stop) }}, {"faults", o.faults},
		} {
			if !o.t.Run(verb.name, func(t *testing.T) {
				outer := o.t
				o.t = t
				defer func() { o.t = outer }()
				verb.test(all, odds)
			}) {
				break
			}
		}
		stop()
	})
}

func (o *operator) list(all, odds []string) {
	r := o.letters(0, "list")
	assert.Regexp(o.t, `(?m)^ID +FAILURES  LAST FAILURE +CAUSE +DEAD REASON +HANDLER +REASON$`, r.stdout)
	assert.Equal(o.t, len(all)+1, strings.Count(r.stdout, "\n"))
	assert.NotContains(o.t, r.stdout, "\x1b")
	assert.Equal(o.t, all, o.ids())
	assert.Equal(o.t, all, o.ids(), "looking changes nothing")
	assert.Equal(o.t, odds, o.ids("--reason", "^no stock"))
	assert.Equal(o.t, []string{all[3], all[8]}, o.ids("--id", all[3], "--id", all[8]))
	assert.Len(o.t, o.ids("--meta", "customer=3"), 6)
	assert.Len(o.t, o.ids("--handler", "bill", "--newer-than", "1h", "--dead-reason", "permanent"), 30)
	r = o.letters(4, "list", "--handler", "absent")
	assert.Contains(o.t, r.stderr, "no letter in "+o.dead+" matches")
	assert.Len(o.t, o.ids("--limit", "7"), 7)
	assert.Equal(o.t, all, o.ids())
}

func (o *operator) group(_, odds []string) {
	r := o.letters(0, "list", "--group")
	assert.Regexp(o.t, `(?m)^ +15  [0-9a-f]{8}  permanent +\*errors\.errorString +the service is down `, r.stdout)
	row := regexp.MustCompile(`(?m)^ +15  ([0-9a-f]{8})  permanent +\*errors\.errorString +no stock of item <n> `).FindStringSubmatch(r.stdout)
	require.Len(o.t, row, 2, r.stdout)
	assert.Equal(o.t, odds, o.ids("--cause", row[1]))
}

func (o *operator) show(all, _ []string) {
	r := o.letters(0, "show", all[4])
	for _, want := range []string{"Failure record\n", "dead reason", "permanent", "handler", "bill", `"order": 4`, "customer"} {
		assert.Contains(o.t, r.stdout, want)
	}
	r = o.letters(0, "show", all[2])
	assert.NotContains(o.t, r.stdout, "\x1b")
	r = o.letters(4, "show", "absent")
	assert.Contains(o.t, r.stderr, "no letter in "+o.dead+" has the id absent; `wmretry dead list ")
}

func (o *operator) goTest(all, _ []string) {
	folder := o.t.TempDir()
	args := []string{"dead", "show", o.topic, all[4], "--go-test", "billing", "--redact", "email"}
	r := o.in(folder, 0, args...)
	assert.Contains(o.t, r.stdout, "billing_order-04_test.go and testdata/order-04.json written")
	content, err := os.ReadFile(filepath.Join(folder, "testdata", "order-04.json"))
	require.NoError(o.t, err)
	assert.NotContains(o.t, string(content), "ann@example.com")
}

func (o *operator) export(all, odds []string) {
	file := filepath.Join(o.t.TempDir(), "letters.jsonl")
	r := o.letters(0, "export", "-o", file)
	assert.Contains(o.t, r.stdout, "30 letters of "+o.dead+" written to "+file)
	o.letters(64, "export", "-o", file)
	o.letters(4, "export", "-o", file+".none", "--handler", "absent")
	assert.Equal(o.t, len(odds), strings.Count(o.letters(0, "export", "-o", "-", "--reason", "stock").stdout, "\n"))
	s := o.summary(0, "dead", "import", file, "--dry-run")
	assert.Equal(o.t, summary{Total: 30, Done: 30}, s)
	content, err := os.ReadFile(file)
	require.NoError(o.t, err)
	require.NoError(o.t, os.WriteFile(file, append(content, "{\"half\""...), 0o600))
	assert.Contains(o.t, o.wmretry(1, "dead", "import", file, "--dry-run").stderr, "line 31")
	assert.Equal(o.t, all, o.ids())
}

func (o *operator) status(_, _ []string) {
	row := `(?m)^` + o.app.Group + `\.` + o.topic + ` +0 +0  - +0 +\S+ +30  \d{4}-`
	assert.Regexp(o.t, row, o.wmretry(0, "status", o.topic).stdout)
	assert.Contains(o.t, o.wmretry(0, "status", "--json").stdout, `30`)
	assert.Contains(o.t, o.wmretry(0, "status", "absent").stdout, "None has the name absent. There are: ")
}

func (o *operator) doctor(_, _ []string) {
	// On a machine that stands still for a while the app has no consumer for that time.
	for _, want := range [][]string{{"Nothing is wrong."}, {`"findings":[]`, "--json"}} {
		var r result
		o.eventually("nothing is wrong", func() bool {
			r = o.wmretry(-1, append([]string{"doctor"}, want[1:]...)...)
			return r.code == 0
		})
		assert.Contains(o.t, r.stdout, want[0])
		if len(want) == 1 {
			assert.Contains(o.t, r.stdout, "\n"+names[o.entry.Name]+" ")
		}
	}
	assert.Contains(o.t, o.wmretry(64, "doctor", "--ignore", "absent").stderr, `there is no rule "absent"`)
	assert.Contains(o.t, o.wmretry(1, "doctor", "--health", "http://127.0.0.1:1/health").stdout, "health http://127.0.0.1:1/health\n")
}

// refusals are the same on all backends.
func (o *operator) refusals(all, _ []string) {
	r := o.letters(64, "discard")
	assert.Contains(o.t, r.stderr, "there is no terminal to ask on")
	o.letters(64, "list", "--reason", "a(b")
	o.letters(64, "redrive", "--canary-wait", "5s")
	r = o.wmretry(1, "dead", "list", "absent"+o.topic)
	assert.Contains(o.t, r.stderr, "the queue does not exist")
	if o.entry.Name == "postgres" {
		r = o.letters(1, "list", "--table", "no_such")
		assert.Contains(o.t, r.stderr, `--table is "no_such", and the database of `)
		assert.Contains(o.t, r.stderr, "has no such table")
	}
	help := o.wmretry(0, "--help").stdout + o.wmretry(0, "dead", "list", "--help").stdout
	for _, only := range []string{"any-limit", "management", "tiers", "topology", "QUEUE"} {
		assert.NotContains(o.t, help, only, "of RabbitMQ")
	}
	assert.Contains(o.t, help, "consumer-group")
	assert.Contains(o.t, o.wmretry(0, "__complete", "dead", "list", "").stdout, o.topic+"\n")
	assert.Equal(o.t, all, o.ids())
}

// redrive also shows that the message comes back as it was, to the handler.
func (o *operator) redrive(all, odds []string) {
	if o.entry.Expect.Letters == registry.BrowseLetters {
		assert.Contains(o.t, o.letters(1, "redrive").stderr, "Kafka removes no single message")
		assert.NotContains(o.t, o.wmretry(0, "dead", "--help").stdout, "redrive ")
		return
	}
	assert.Equal(o.t, summary{Total: 30, Done: 15, Other: 15}, o.change(0, "redrive", "--dry-run", "--reason", "stock"))
	calls := o.called()
	s := o.change(3, "redrive", "--canary", "2", "--canary-wait", "10m") // until the first one has died again
	assert.Equal(o.t, 2, s.Done)
	require.NotEmpty(o.t, s.Causes)
	assert.Greater(o.t, o.called(), calls)
	o.awaitLetters(all...)
	// At the first rates all may be gone before an app on a busy machine has handled two of them.
	for _, rate := range []string{"20/s", "5/s", "1/s", "6/m"} {
		s = o.change(-1, "redrive", "--max-redead", "5%", "--rate", rate)
		if s.Error != "" {
			break
		}
		o.awaitLetters(all...)
	}
	assert.Contains(o.t, s.Error, "died again")
	assert.GreaterOrEqual(o.t, s.Done, 20)
	assert.NotZero(o.t, s.Redead)
	o.awaitLetters(all...)

	o.healthy.Store(true)
	assert.Equal(o.t, 4, o.letters(4, "redrive", "--handler", "absent").code)
	s = o.change(0, "redrive", "--id", all[2], "--id", all[3], "--by", "ann", "--note", "INC-42")
	assert.Equal(o.t, 2, s.Done)
	o.awaitHandled(all[2], all[3])
	for _, id := range all[2:4] {
		assert.Equal(o.t, o.first[id].Payload, o.handled[id].Payload)
		assert.Equal(o.t, o.first[id].Metadata["customer"], o.handled[id].Metadata["customer"])
		history, found := letters.ReadRedriven(o.handled[id].Metadata)
		assert.True(o.t, found)
		last := history.Redrives[len(history.Redrives)-1]
		assert.Equal(o.t, "ann INC-42", last.By+" "+last.Note)
	}
	at, err := url.Parse(o.url)
	require.NoError(o.t, err)
	where := (&url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path}).String()
	assert.Contains(o.t, o.letters(0, "redrive", "--dry-run").stdout, "Redrive of "+o.dead+" at "+where+", dry run")
	s = o.change(0, "redrive", "--limit", "3", "--canary", "1", "--canary-wait", "1s")
	assert.Equal(o.t, 3, s.Done)
	assert.Len(o.t, o.ids(), 25)
}

func (o *operator) discard(all, odds []string) {
	if o.entry.Expect.Letters == registry.BrowseLetters {
		assert.Contains(o.t, o.letters(1, "discard", "--yes").stderr, "Kafka removes no single message")
		o.importBack(all)
		return
	}
	left := o.ids()
	assert.Equal(o.t, 25, o.change(0, "discard", "--dry-run").Done)
	file := filepath.Join(o.t.TempDir(), "letters.jsonl")
	assert.Equal(o.t, 25, o.change(0, "discard", "--yes", "--export", file).Done)
	assert.Empty(o.t, o.ids())
	assert.Contains(o.t, o.letters(64, "discard", "--yes", "--export", file).stderr, "may have the only copy of other letters")
	assert.Equal(o.t, summary{Total: 25, Done: 25}, o.summary(0, "dead", "import", file))
	assert.Equal(o.t, left, o.ids())
	second := file + ".again"
	o.letters(0, "export", "-o", second)
	assert.True(o.t, slices.Equal(sortedLines(o.t, file), sortedLines(o.t, second)), "every byte is as before")
	s := o.change(0, "redrive", "--rate", "200/s")
	assert.Equal(o.t, 25, s.Done)
	o.awaitHandled(all...)
	assert.Empty(o.t, o.ids())
}

// hostile: nothing in a letter can change the terminal.
func (o *operator) hostile(_, _ []string) {
	if o.entry.Expect.Letters == registry.BrowseLetters {
		return
	}
	const hostile = "\x1b]0;owned\a\x1b[2J\u009b31m\u202e\r<script>"
	failure := backoff.Permanent(errors.New(hostile))
	o.failure.Store(&failure)
	// A header of NATS, as the UUID is one, has no carriage return.
	msg := message.NewMessage("id"+strings.ReplaceAll(hostile, "\r", ""), []byte(`{"text":"`+hostile+`"}`))
	msg.Metadata = message.Metadata{"key" + hostile: hostile, "customer": hostile}
	o.publish(msg)
	o.awaitLetters(msg.UUID)
	o.failure.Store(nil)
	shown := strings.Split(strings.Split(o.letters(0, "list").stdout, "\n")[1], "  ")[0]
	for _, args := range [][]string{
		{"list"}, {"list", "--json"}, {"list", "--group"}, {"list", "--group", "--json"}, {"show", shown},
		{"show", shown, "--json"}, {"export", "-o", "-"}, {"redrive", "--id", shown, "--dry-run"}, {"discard", "--id", shown, "--yes"},
	} {
		r := o.letters(0, args[0], args[1:]...)
		assert.NotRegexp(o.t, "[\x00-\x08\x0b-\x1f\x7f-\u009f\u202e]", r.stdout+r.stderr, args)
	}
	assert.Empty(o.t, o.ids())
}

// importBack imports letters where they cannot be removed: each is there twice then.
func (o *operator) importBack(all []string) {
	file := filepath.Join(o.t.TempDir(), "letters.jsonl")
	o.letters(0, "export", "-o", file, "--id", all[2])
	assert.Equal(o.t, summary{Total: 1, Done: 1}, o.summary(0, "dead", "import", file))
	assert.Len(o.t, o.ids("--id", all[2]), 2)
	second := file + ".again"
	o.letters(0, "export", "-o", second, "--id", all[2])
	lines := sortedLines(o.t, second)
	assert.Equal(o.t, lines[0], lines[1], "every byte is as before")
}

func sortedLines(t *testing.T, file string) []string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	slices.Sort(lines)
	return lines
}
