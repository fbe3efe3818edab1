package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// statusLines returns the status as a table, and what to do about it.
func (e *env) statusLines(status deadletter.Status, f *statusFlags) []string {
	b := &statusTable{env: e, Writer: e.table("QUEUE", "MESSAGES", "READY", "UNACKED", "CONSUMERS", "DUE", "NOTE"),
		flags: f}
	columns := []table.ColumnConfig{{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight},
		{Number: 4, Align: text.AlignRight}, {Number: 5, Align: text.AlignRight}}
	b.SetColumnConfigs(columns)
	groups := map[string][]deadletter.Tier{}
	for _, w := range status.Queues {
		b.work(w)
		for _, t := range w.Tiers {
			if t.Group != "" {
				groups[t.Group] = w.Tiers
			}
		}
	}
	for _, group := range sortedKeys(groups) {
		b.group(group, groups[group])
	}
	b.depth(status.Orphans, 0, status.Orphans.Queue,
		noteOf(status.Orphans.Messages > 0, e.advised("wmretry orphans redrive")), text.FgYellow)
	for _, d := range status.Stray {
		b.depth(d, 0, d.Queue, "stray: its work queue is gone, and what waits here becomes an orphan", text.FgYellow)
		b.retired = b.retired || d.Messages == 0
	}
	lines := []string{e.paint(text.Faint, e.time(status.At))}
	if len(status.Queues) == 0 {
		lines = append(lines, fmt.Sprintf("No work queue with the prefix %s has a dead-letter queue. Another "+
			"prefix: --prefix", safe(e.prefix())))
	}
	lines = append(lines, strings.Split(b.Render(), "\n")...)
	if b.waits != "" {
		lines = append(lines, "Messages wait on tiers that no schedule has. They come back when their delay is "+
			"over, or at once: "+e.advised(b.waits))
	}
	if b.retired {
		lines = append(lines,
			"Empty retired tiers can be removed: "+e.advised("wmretry tiers prune"+b.pruned(status)))
	}
	return lines
}

// advised returns a command with the prefix of this one.
func (e *env) advised(command string) string {
	if e.prefix() == defaultPrefix {
		return command
	}
	return command + " --prefix " + shellWord(e.prefix())
}

func noteOf(is bool, note string) string {
	if !is {
		return ""
	}
	return note
}

// A statusTable adds rows of queues.
type statusTable struct {
	*env
	table.Writer
	flags   *statusFlags
	waits   string // the command that drains a retired tier
	retired bool   // an empty tier is retired
}

func (b *statusTable) work(w deadletter.WorkQueue) {
	note := ""
	switch {
	case w.Missing:
		note = "does not exist"
	case w.NoConsumer != "":
		note = "no consumer: " + w.NoConsumer
	}
	group := ""
	for _, t := range w.Tiers {
		group = t.Group
	}
	if group != "" {
		note = strings.TrimPrefix(note+", in group "+safe(group), ", ")
	}
	b.depth(w.Depth, 0, w.Name, note, colourOf(w.Missing))
	for _, t := range w.Tiers {
		if t.Group == "" && b.shows(t) {
			b.tier(w.Name, t)
		}
	}
	if w.Inbox.Queue != "" && (b.flags.all || w.Inbox.Messages > 0) {
		b.depth(w.Inbox, 1, "inbox", noteOf(w.Inbox.Messages > 0, "waits for room in the work queue"), 0)
	}
	colour := text.Color(0)
	if w.Dead.Messages > 0 {
		colour = text.FgRed
	}
	b.depth(w.Dead, 1, "dead letters", noteOf(w.Dead.Missing, "no dead-letter queue"), colour)
}

func (b *statusTable) group(name string, tiers []deadletter.Tier) {
	titled := false
	for _, t := range tiers {
		if t.Group == name && b.shows(t) {
			if !titled {
				b.AppendRow(table.Row{"group " + safe(name)})
				titled = true
			}
			b.tier(name, t)
		}
	}
}

// shows reports whether a tier has a row: one without messages has none, unless there is something to say about it.
func (b *statusTable) shows(t deadletter.Tier) bool {
	return b.flags.all || t.Messages > 0 || t.Retired || t.Missing || t.Overdue > 0
}

func (b *statusTable) tier(of string, t deadletter.Tier) {
	var notes []string
	if t.Retired {
		notes = append(notes, "retired")
		if t.Messages > 0 && b.waits == "" {
			b.waits = "wmretry tiers drain " + shellWord(of) + " " + backoff.Tier(t.Delay).String()
			if b.flags.file != "" || t.Group == b.flags.group { // else bindings show that it is retired
				b.waits += b.flags.again()
			}
		}
		b.retired = b.retired || t.Messages == 0
	}
	if t.Missing {
		notes = append(notes, "does not exist")
	}
	if t.Overdue > 0 {
		notes = append(notes, thousands(t.Overdue)+" overdue")
	}
	due := ""
	if !t.NextDue.IsZero() {
		due = "within " + backoff.Tier(t.Delay).String()
	}
	b.row(t.Depth, 1, "tier "+backoff.Tier(t.Delay).String(), due, strings.Join(notes, ", "),
		colourOf(len(notes) > 0))
}

// pruned returns the arguments with which tiers prune finds the same tiers retired.
func (b *statusTable) pruned(status deadletter.Status) (arguments string) {
	if b.flags.schedule != "" {
		for _, w := range status.Queues {
			arguments += " --queue " + shellWord(w.Name)
		}
	}
	return arguments + b.flags.again()
}

func colourOf(odd bool) text.Color {
	if odd {
		return text.FgYellow
	}
	return 0
}

func (b *statusTable) depth(d deadletter.Depth, level int, name, note string, colour text.Color) {
	b.row(d, level, name, "", note, colour)
}

func (b *statusTable) row(d deadletter.Depth, level int, name, due, note string, colour text.Color) {
	cells := []string{strings.Repeat("  ", level) + safe(name), thousands(d.Messages), thousands(d.Ready),
		thousands(d.Unacked), thousands(d.Consumers), due, note}
	if d.Missing {
		cells[1], cells[2], cells[3], cells[4] = "-", "-", "-", "-"
	}
	row := table.Row{}
	for _, cell := range cells {
		if colour != 0 && cell != "" {
			cell = b.paint(colour, cell)
		}
		row = append(row, cell)
	}
	b.AppendRow(row)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
