package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/letters"
)

func newStatusCommand(e *env) *cobra.Command {
	var all bool
	flags := variables{}
	if e.kind == backend.RabbitMQ {
		flags["all"] = &all
	}
	return e.command("status ["+e.of()+"...]", flags, func(ctx context.Context, names []string) error {
		return e.withStore(ctx, func(store *backend.Store) error {
			if store.Rabbit == nil {
				return e.waiting(ctx, store, names)
			}
			status, err := store.Rabbit.Status(ctx, names...)
			if err != nil {
				return err
			}
			return e.output(status, func() string {
				// where no process answers, or the user may not ask, no key is shown
				asked, _ := command.AskerOf(store.Rabbit)(ctx, command.Request{Do: command.Keys}, time.Second)
				keys := e.keyTable(asked.Answers, true)
				return e.statusText(status, all) + only(keys != "", "\n\n"+keys) + "\n"
			})
		})
	})
}

// waiting prints what waits on a backend that is not RabbitMQ.
func (e *env) waiting(ctx context.Context, store *backend.Store, names []string) error {
	all, err := store.Looker.Waiting(ctx)
	if err != nil {
		return err
	}
	shown := slices.DeleteFunc(slices.Clone(all), func(w operate.Waiting) bool {
		_, topic, _ := strings.Cut(w.Name, ".")
		return len(names) > 0 && !slices.Contains(names, w.Name) && !slices.Contains(names, topic)
	})
	board := map[string]any{"backend": e.kind.Name, "at": time.Now().UTC(), "waiting": shown}
	return e.output(board, func() string {
		if len(shown) > 0 || len(all) == 0 {
			return e.waitingTable(shown) + "\n"
		}
		known := each.Of(all, func(w operate.Waiting) string { return w.Name })
		return safe(fmt.Sprintf("None has the name %s. There are: %s", strings.Join(names, ", "),
			strings.Join(known, ", "))) + "\n"
	})
}

// waitingTable returns a row for each consumer group and topic.
func (e *env) waitingTable(all []operate.Waiting) string {
	if len(all) == 0 {
		return "No consumer group with the prefix " + safe(e.prefix()) + " has subscribed, or has dead letters. Another " +
			"prefix: --prefix" + only(e.kind.Name == "PostgreSQL", "; another table: --table")
	}
	t := e.table("GROUP.TOPIC", ">WAITING", ">OVERDUE", "NEXT DUE", ">IN FLIGHT", ">CONSUMERS", ">DEAD", "OLDEST DEAD")
	for _, w := range all {
		consumers := "-"
		if w.Consumers != nil {
			consumers = thousands(*w.Consumers)
		}
		paint := func(colour text.Color, n int) string { return e.paint(only(n > 0, colour), thousands(n)) }
		t.AppendRow(table.Row{safe(w.Name), thousands(w.Retries), paint(text.FgYellow, w.Overdue), e.time(w.NextDue),
			thousands(w.InFlight), consumers, paint(text.FgRed, w.Dead), e.time(w.OldestDead)})
	}
	return t.Render()
}

// statusText returns the status as a table, and what to do about it.
func (e *env) statusText(status letters.Status, all bool) string {
	b := &statusTable{env: e, Writer: e.table("QUEUE", ">MESSAGES", ">READY", ">UNACKED", ">CONSUMERS", "DUE", "NOTE"),
		all: all}
	groups := map[string][]letters.Tier{}
	for _, w := range status.Queues {
		b.work(w)
		for _, t := range w.Tiers {
			if t.Group != "" {
				groups[t.Group] = w.Tiers
			}
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		b.tiers(group, groups[group])
	}
	b.row(status.Orphans, 0, status.Orphans.Queue, "",
		only(status.Orphans.Messages > 0, e.advised("dead", "redrive", status.Orphans.Queue)),
		text.FgYellow)
	for _, d := range status.Stray {
		b.row(d, 0, d.Queue, "", "stray: its work queue is gone, and what waits here becomes an orphan", text.FgYellow)
	}
	head := e.paint(text.Faint, e.time(status.At)) + "\n"
	if len(status.Queues) == 0 {
		head += "No work queue with the prefix " + safe(e.prefix()) + " has a dead-letter queue. Another prefix: --prefix\n"
	}
	return head + b.Render()
}

// advised returns a command with the prefix of this one.
func (e *env) advised(words ...string) string {
	return safe(workqueue.Command(naming.Prefix(e.prefix()), words...))
}

// only returns a value, or the zero value where that does not hold.
func only[T any](is bool, value T) (none T) {
	if is {
		return value
	}
	return none
}

// A statusTable adds rows of queues.
type statusTable struct {
	*env
	table.Writer
	all bool // empty tiers, too
}

func (b *statusTable) work(w letters.WorkQueue) {
	var notes []string
	switch {
	case w.Missing:
		notes = append(notes, "does not exist")
	case w.Consumers == 0:
		notes = append(notes, "no consumer: paused, or its app is down")
	}
	if at := slices.IndexFunc(w.Tiers, func(t letters.Tier) bool { return t.Group != "" }); at >= 0 {
		notes = append(notes, "in group "+safe(w.Tiers[at].Group))
	}
	if n := w.Partitions; n > 0 {
		notes = append(notes, "with "+plural(n, "partition", "partitions"))
	}
	b.row(w.Depth, 0, w.Name, "", strings.Join(notes, ", "), only(w.Missing, text.FgYellow))
	b.tiers("", w.Tiers)
	if w.Inbox.Queue != "" && (b.all || w.Inbox.Messages > 0) {
		b.row(w.Inbox, 1, "inbox", "", only(w.Inbox.Messages > 0, "waits for room in the work queue"), 0)
	}
	b.row(w.Dead, 1, "dead letters", "", only(w.Dead.Missing, "no dead-letter queue"),
		only(w.Dead.Messages > 0, text.FgRed))
}

// tiers adds the tiers of a group, or those that a work queue has alone. A tier without messages has no row, unless
// there is something to say about it.
func (b *statusTable) tiers(group string, tiers []letters.Tier) {
	titled := group == ""
	for _, t := range tiers {
		if t.Group != group || !b.all && t.Messages == 0 && !t.Retired && t.Overdue == 0 {
			continue
		}
		if !titled {
			b.AppendRow(table.Row{"group " + safe(group)})
			titled = true
		}
		var notes []string
		if t.Retired {
			notes = append(notes, "retired")
		}
		if t.IsOverdue() {
			notes = append(notes, thousands(t.Overdue)+" overdue")
		}
		odd := len(notes) > 0
		if t.Overdue > 0 && !t.IsOverdue() {
			notes = append(notes, thousands(t.Overdue)+" due")
		}
		delay := backoff.Tier(t.Delay).String()
		b.row(t.Depth, 1, "tier "+delay, only(!t.NextDue.IsZero(), "within "+delay), strings.Join(notes, ", "),
			only(odd, text.FgYellow))
	}
}

func (b *statusTable) row(d letters.Depth, level int, name, due, note string, colour text.Color) {
	cells := []string{strings.Repeat("  ", level) + safe(name), thousands(d.Messages), thousands(d.Ready),
		thousands(d.Unacked), thousands(d.Consumers), due, note}
	if d.Missing && d.Messages == 0 { // partitions can have messages without their work queue
		cells[1], cells[2], cells[3], cells[4] = "-", "-", "-", "-"
	}
	b.AppendRow(b.env.row(colour, cells...))
}

// row returns a row of a table, in a colour.
func (e *env) row(colour text.Color, cells ...string) table.Row {
	return each.Of(cells, func(cell string) any { return e.paint(colour, cell) })
}
