package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/letters"
)

// TestEachVerbOnEachBackend runs the verbs that ask a server in a row, with one app on one server. What the command does
// with a letter, and RabbitMQ, have tests in cmd/wmretry.
func TestEachVerbOnEachBackend(t *testing.T) {
	t.Parallel()
	onEach(t, func(o *operator) {
		var all, odds []string
		var messages []*message.Message
		for i := range 30 {
			msg := message.NewMessage(fmt.Sprintf("order-%02d", i), fmt.Appendf(nil, `{"order":%d}`, i))
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
			{"list", o.list}, {"export", o.export}, {"status", o.status}, {"doctor", o.doctor}, {"redrive", o.redrive},
			{"discard", o.discard}, {"waits", func(_, _ []string) { o.waits(stop) }}, {"faults", o.faults},
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
	assert.Equal(o.t, all, o.ids())
	assert.Equal(o.t, all, o.ids(), "looking changes nothing")
	assert.Equal(o.t, odds, o.ids("--reason", "^no stock"))
	assert.Contains(o.t, o.letters(0, "show", all[4]).stdout, `"order": 4`)
	assert.Contains(o.t, o.letters(4, "show", "absent").stderr, "no letter in "+o.dead+" has the id absent; `wmretry dead list ")
	assert.Contains(o.t, o.wmretry(1, "dead", "list", "absent"+o.topic).stderr, "the queue does not exist")
	assert.Contains(o.t, o.wmretry(0, "__complete", "dead", "list", "").stdout, o.topic+"\n")
}

func (o *operator) export(all, _ []string) {
	file := filepath.Join(o.t.TempDir(), "letters.jsonl")
	r := o.letters(0, "export", "-o", file)
	assert.Contains(o.t, r.stdout, "30 letters of "+o.dead+" written to "+file)
	assert.Equal(o.t, summary{Total: 30, Done: 30}, o.summary(0, "dead", "import", file, "--dry-run"))
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
	var r result
	o.eventually("nothing is wrong", func() bool { r = o.wmretry(-1, "doctor"); return r.code == 0 })
	assert.Contains(o.t, r.stdout, "Nothing is wrong.")
	assert.Contains(o.t, r.stdout, "\n"+names[o.entry.Name]+" ")
}

// redrive also shows that the message comes back as it was, to the handler.
func (o *operator) redrive(all, _ []string) {
	if o.entry.Expect.Letters == registry.BrowseLetters {
		assert.Contains(o.t, o.letters(1, "redrive").stderr, "Kafka removes no single message")
		assert.NotContains(o.t, o.wmretry(0, "dead", "--help").stdout, "redrive ")
		return
	}
	assert.Equal(o.t, summary{Total: 30, Done: 15, Other: 15}, o.change(0, "redrive", "--dry-run", "--reason", "stock"))
	o.healthy.Store(true)
	s := o.change(0, "redrive", "--id", all[2], "--id", all[3], "--by", "ann", "--note", "INC-42")
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
	assert.Len(o.t, o.ids(), 28)
}

func (o *operator) discard(all, _ []string) {
	if o.entry.Expect.Letters == registry.BrowseLetters {
		assert.Contains(o.t, o.letters(1, "discard", "--yes").stderr, "Kafka removes no single message")
		o.importBack(all)
		return
	}
	left := o.ids()
	file := filepath.Join(o.t.TempDir(), "letters.jsonl")
	assert.Equal(o.t, len(left), o.change(0, "discard", "--yes", "--export", file).Done)
	assert.Empty(o.t, o.ids())
	assert.Equal(o.t, summary{Total: len(left), Done: len(left)}, o.summary(0, "dead", "import", file))
	assert.Equal(o.t, left, o.ids())
	second := file + ".again"
	o.letters(0, "export", "-o", second)
	assert.True(o.t, slices.Equal(sortedLines(o.t, file), sortedLines(o.t, second)), "every byte is as before")
	assert.Equal(o.t, len(left), o.change(0, "redrive").Done)
	o.awaitHandled(all...)
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
