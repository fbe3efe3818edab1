package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

type statusFlags struct {
	wantedFlags
	watch, oldest, all bool
	interval           time.Duration
}

func newStatusCommand(e *env) *cobra.Command {
	var f statusFlags
	c := &cobra.Command{
		Use:   "status [QUEUE...]",
		Short: "Every work queue with its tiers, dead letters and orphans",
		Long: `Shows work queues, what waits on their tiers, their dead letters, and the orphans. The management API finds the queues; its figures
are up to ten seconds old. Without it, name the work queues, and the schedule to see their tiers.

A tier is due at the latest after its whole delay: RabbitMQ does not show how long a message has waited. A tier is retired when no
schedule has it: without --schedule and --file, when no binding leads to it any more.`,
		Example: `  wmretry status
  wmretry status --watch
  wmretry status orders billing --json
  wmretry status orders --schedule "1s 5s 25s"   # and what waits on other tiers of orders
  wmretry status --oldest                        # looks at the first dead letter of each queue`,
		RunE: func(c *cobra.Command, args []string) error { return e.status(c, args, &f) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return (&letterCommand{env: e}).completeQueue()
		},
	}
	f.add(c, true)
	flags := c.Flags()
	flags.BoolVarP(&f.watch, "watch", "w", false, "show it again and again, until Ctrl-C")
	flags.DurationVar(&f.interval, "interval", time.Second, "how often --watch shows it, at least 100ms")
	flags.BoolVar(&f.oldest, "oldest", false, "also look at the first letter of each queue, to know its age: up to RabbitMQ 4.2 each look counts as a delivery")
	flags.BoolVar(&f.all, "all", false, "show empty tiers, too")
	return c
}

func (e *env) status(c *cobra.Command, works []string, f *statusFlags) error {
	if f.watch && f.oldest {
		return usage("--oldest reads a letter of each queue, and --watch would do so every %v: leave one of them out", f.interval)
	}
	if f.interval < 100*time.Millisecond {
		return usage("--interval is %v: it must be at least 100ms", f.interval)
	}
	current, err := e.current(c, &f.wantedFlags, works)
	if err != nil {
		return err
	}
	ctx := c.Context()
	store, err := e.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	read := e.statusOf(store, current, works)
	defer read.close()
	if f.watch {
		return e.watch(ctx, f, read)
	}
	status, err := read.status(ctx)
	if err != nil {
		return err
	}
	if f.oldest {
		if err := oldest(ctx, store, &status); err != nil {
			return err
		}
	}
	if e.json {
		return e.printJSON(status)
	}
	_, err = fmt.Fprintln(e.stdout, strings.Join(e.statusLines(status, f), "\n"))
	return err
}

// current returns the topologies that the flags describe, or none.
func (e *env) current(c *cobra.Command, f *wantedFlags, works []string) ([]topology.Topology, error) {
	if f.file == "" && f.schedule == "" {
		for _, name := range []string{"jitter", "extra-tiers", "group"} {
			if c.Flags().Changed(name) {
				return nil, usage("--%s is set without --schedule: only the whole schedule shows which tiers are in use", name)
			}
		}
		return nil, nil
	}
	if f.file == "" && len(works) == 0 {
		return nil, usage("--schedule is set, and no work queue is named: name those that have it, such as wmretry status orders --schedule \"1s 5s\"")
	}
	wanted, err := f.wanted(c, e.prefix(), works)
	return topologiesOf(wanted), err
}

// A statusReader reads the status, by the management API if it answers.
type statusReader struct {
	env     *env
	store   *deadletter.Store
	plain   *deadletter.Store // without the management API
	current []topology.Topology
	works   []string
	asked   bool // the API has answered
}

func (e *env) statusOf(store *deadletter.Store, current []topology.Topology, works []string) *statusReader {
	return &statusReader{env: e, store: store, current: current, works: works}
}

// guessed reports whether no address of the management API was named.
func (e *env) guessed() bool {
	return e.flags.management == "" && e.getenv("AMQP_MANAGEMENT_URL") == ""
}

func (r *statusReader) status(ctx context.Context) (deadletter.Status, error) {
	if r.plain != nil {
		return r.plain.StatusWith(ctx, r.current, r.works...)
	}
	status, err := r.store.StatusWith(ctx, r.current, r.works...)
	if err == nil {
		r.asked = true
	}
	if err == nil || r.asked || ctx.Err() != nil || !r.env.guessed() {
		return status, err
	}
	if len(r.works) == 0 && len(r.current) == 0 {
		return status, fmt.Errorf("%w; name its address with --management, or name the work queues: wmretry status orders", err)
	}
	config, configErr := r.env.config()
	if configErr != nil {
		return status, configErr
	}
	config.Management = ""
	if r.plain, configErr = deadletter.Open(config, r.env.logger()); configErr != nil {
		return status, configErr
	}
	_, _ = fmt.Fprintf(r.env.stderr, "wmretry: without the management API: %s. Unacknowledged messages, retired tiers and tiers without --schedule are not shown\n",
		r.env.scrub(err.Error()))
	return r.plain.StatusWith(ctx, r.current, r.works...)
}

func (r *statusReader) close() {
	if r.plain != nil {
		_ = r.plain.Close()
	}
}

// oldest looks at the first letter of each queue.
func oldest(ctx context.Context, store *deadletter.Store, status *deadletter.Status) error {
	depths := []*deadletter.Depth{&status.Orphans}
	for i := range status.Queues {
		depths = append(depths, &status.Queues[i].Dead)
	}
	for _, d := range depths {
		if d.Missing || d.Messages == 0 {
			continue
		}
		at, found, err := store.Oldest(ctx, d.Queue)
		if err != nil {
			return err
		}
		if found {
			d.Oldest = at
		}
	}
	return nil
}

// statusLines returns the status as a table, and what to do about it.
func (e *env) statusLines(status deadletter.Status, f *statusFlags) []string {
	b := &statusTable{env: e, Writer: e.table("QUEUE", "MESSAGES", "READY", "UNACKED", "CONSUMERS", "DUE", "OLDEST", "NOTE"), at: status.At, all: f.all}
	columns := []table.ColumnConfig{{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight}, {Number: 4, Align: text.AlignRight}, {Number: 5, Align: text.AlignRight}}
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
	b.depth(status.Orphans, 0, status.Orphans.Queue, noteOf(status.Orphans.Messages > 0, "wmretry orphans redrive"), text.FgYellow)
	for _, d := range status.Stray {
		b.depth(d, 0, d.Queue, "stray: its work queue is gone, and what waits here becomes an orphan", text.FgYellow)
		b.retired = b.retired || d.Messages == 0
	}
	lines := []string{e.paint(text.Faint, e.time(status.At))}
	if len(status.Queues) == 0 {
		lines = append(lines, fmt.Sprintf("No work queue with the prefix %s has a dead-letter queue. Another prefix: --prefix", safe(e.prefix())))
	}
	lines = append(lines, strings.Split(b.Render(), "\n")...)
	if b.waits != "" {
		lines = append(lines, "Messages wait on tiers that no schedule has. They come back when their delay is over, or at once: wmretry tiers drain "+b.waits)
	}
	if b.retired {
		lines = append(lines, "Empty retired tiers can be removed: wmretry tiers prune")
	}
	return lines
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
	at      time.Time
	all     bool
	waits   string // arguments that drain a retired tier
	retired bool   // an empty tier is retired
}

func (b *statusTable) work(w deadletter.WorkQueue) {
	note := ""
	switch {
	case w.Missing:
		note = "does not exist"
	case w.Consumers == 0:
		note = "no consumer"
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
	if w.Inbox.Queue != "" && (b.all || w.Inbox.Messages > 0) {
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
	return b.all || t.Messages > 0 || t.Retired || t.Missing || t.Overdue > 0
}

func (b *statusTable) tier(of string, t deadletter.Tier) {
	var notes []string
	if t.Retired {
		notes = append(notes, "retired")
		if t.Messages > 0 && b.waits == "" {
			b.waits = safe(of) + " " + backoff.Tier(t.Delay).String()
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
	b.row(t.Depth, 1, "tier "+backoff.Tier(t.Delay).String(), due, strings.Join(notes, ", "), colourOf(len(notes) > 0))
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
	cells := []string{strings.Repeat("  ", level) + safe(name), thousands(d.Messages), thousands(d.Ready), thousands(d.Unacked), thousands(d.Consumers), due, "", note}
	if d.Missing {
		cells[1], cells[2], cells[3], cells[4] = "-", "-", "-", "-"
	}
	if !d.Oldest.IsZero() {
		cells[6] = ago(b.at.Sub(d.Oldest))
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

// ago formats an age with one unit.
func ago(age time.Duration) string {
	switch {
	case age < time.Minute:
		return fmt.Sprintf("%ds", int(max(age, 0).Seconds()))
	case age < time.Hour:
		return fmt.Sprintf("%dm", int(age.Minutes()))
	case age < 48*time.Hour:
		return fmt.Sprintf("%dh", int(age.Hours()))
	}
	return fmt.Sprintf("%dd", int(age.Hours()/24))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
