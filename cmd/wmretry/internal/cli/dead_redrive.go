package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

type redriveFlags struct {
	filterFlags
	dryRun          bool
	limit, canary   int
	rate, maxRedead string
	canaryWait      time.Duration
	to, by, note    string
}

func newRedriveCommand(l *letterCommand) *cobra.Command {
	var f redriveFlags
	short := "Send letters back to their work queue, where their retries begin from the start"
	record := "The message is the same as before; its count of failures begins from the start, and its history\nnotes the redrive."
	if l.orphans {
		short = "Send orphans back to their work queue, where their retries go on"
		record = "The message is the same as before, with its failure record: its failures are counted on."
	}
	c := l.command(&cobra.Command{
		Use:   "redrive",
		Short: short,
		Long: `Sends letters back to their work queue itself, and removes each one after the broker has confirmed it. It sends only what was
there when the command began. ` + record + `
A letter whose work queue is gone stays where it is.

--canary 10 sends ten letters first, watches whether they die again, and goes on only if none does. --max-redead 5% stops when more
than that share of the sent letters has died again.

Killed at any moment it loses nothing. What was in flight then, at most 256 letters, may be handled twice. Ctrl-C stops after the
letters in flight and prints the summary; a second Ctrl-C ends the command at once. Only one redrive or discard at a time
changes a queue.`,
		Example: `  wmretry dead redrive orders --dry-run                        # counts what would be sent
  wmretry dead redrive orders --canary 10 --rate 50/s
  wmretry dead redrive orders --reason 'connection refused' --newer-than 2h
  wmretry dead redrive orders --max-redead 5%
  wmretry dead redrive orders --ids 5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30`,
		RunE: func(c *cobra.Command, args []string) error {
			options, err := f.options()
			if err != nil {
				return err
			}
			return l.redrive(c.Context(), args, options, &f.filterFlags)
		},
	})
	f.add(c, true)
	flags := c.Flags()
	flags.BoolVar(&f.dryRun, "dry-run", false, "count what would be sent, and send nothing")
	flags.IntVar(&f.limit, "limit", 0, "send at most so many letters (default: all)")
	flags.StringVar(&f.rate, "rate", "", "send at most so many, such as 50/s or 3000/m (default: as fast as the broker takes them)")
	flags.IntVar(&f.canary, "canary", 0, "send so many letters first, and go on only if none of them dies again")
	flags.DurationVar(&f.canaryWait, "canary-wait", 0, "how long to watch them (default: as long as they took to die the last time, plus 5% and 10 seconds, at most an hour)")
	flags.StringVar(&f.maxRedead, "max-redead", "", "stop when more than this share dies again, such as 5%; looked at from 20 sent letters on")
	if !l.orphans { // these have a target, and no history
		flags.StringVar(&f.to, "to", "", "work queue to send to, in place of the letter's own one")
		flags.StringVar(&f.by, "by", "", "who redrives, for the history (default: user@host)")
		flags.StringVar(&f.note, "note", "", "a note for the history")
		c.Example += "\n  wmretry dead redrive orders --note 'after the fix of INC-42'"
	}
	return c
}

func (f *redriveFlags) options() (letters.Redrive, error) {
	filter, err := f.filter()
	if err != nil {
		return letters.Redrive{}, err
	}
	options := letters.Redrive{
		Filter: filter, Limit: f.limit, Canary: f.canary, CanaryWait: f.canaryWait, DryRun: f.dryRun, To: f.to, By: f.by, Note: f.note,
	}
	if options.Rate, err = rate(f.rate); err != nil {
		return options, err
	}
	if options.MaxRedead, err = share(f.maxRedead); err != nil {
		return options, err
	}
	if err := errors.Join(limit("--limit", f.limit), limit("--canary", f.canary)); err != nil {
		return options, exit(codeUsage, err)
	}
	if f.canaryWait < 0 || f.canaryWait > 0 && f.canary == 0 {
		return options, usage("--canary-wait %v: it must be above 0, and needs --canary, the number of letters to watch", f.canaryWait)
	}
	if err := options.Validate(); err != nil {
		return options, exit(codeUsage, err)
	}
	return options, nil
}

// redrive runs a redrive, and prints its summary in any case.
func (l *letterCommand) redrive(ctx context.Context, args []string, options letters.Redrive, selected *filterFlags) error {
	return l.redriveWith(ctx, args, options, selected, "")
}

// redriveWith is redrive, and prints what became of the one letter with an id, if edited is not empty.
func (l *letterCommand) redriveWith(ctx context.Context, args []string, options letters.Redrive, selected *filterFlags, edited string) error {
	queue, _ := l.queue(args)
	store, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if options.Canary > 0 && !options.DryRun {
		l.warnNoConsumer(ctx, queue, options.To)
	}
	start := time.Now()
	report := report{Command: "redrive", Queue: queue, DryRun: options.DryRun, Limit: options.Limit, edited: edited}
	err = l.measure(ctx, &report, "sent", func(show func(letters.Progress)) (letters.Summary, error) {
		options.Progress = show
		return store.Redrive(ctx, queue, options)
	})
	if err != nil && report.Summary == (letters.Summary{}) {
		return l.failed(ctx, queue, err)
	}
	if errors.Is(err, letters.ErrRedead) {
		report.Causes = l.deaths(ctx, store, queue, start)
	}
	return l.finish(ctx, &report, err, selected)
}

// warnNoConsumer warns of a canary that cannot die. The queue of an orphan, or of a letter in another queue, is not known before.
func (l *letterCommand) warnNoConsumer(ctx context.Context, queue, to string) {
	work := to
	if work == "" {
		var dead bool
		if work, dead = strings.CutSuffix(queue, deadletter.QueueOf("")); !dead || work == "" {
			return
		}
	}
	config, err := l.config()
	if err != nil {
		return
	}
	config.Management = "" // its numbers are late
	store, err := deadletter.Open(config, l.logger())
	if err != nil {
		return
	}
	defer func() { _ = store.Close() }()
	status, err := store.Status(ctx, work)
	if err == nil && len(status.Queues) == 1 && !status.Queues[0].Missing && status.Queues[0].Consumers == 0 {
		_, _ = fmt.Fprintf(l.stderr, "wmretry: warning: the queue %s has no consumer: a canary that no app handles cannot die\n", safe(work))
	}
}

// measure runs a change of a queue, shows its progress, and completes its report. The verb is what happens to a letter.
func (l *letterCommand) measure(ctx context.Context, report *report, verb string, change func(show func(letters.Progress)) (letters.Summary, error)) error {
	if report.DryRun {
		verb = "selected"
	}
	start := time.Now()
	meter := l.meter(report.Command+" of "+safe(report.Queue), verb)
	defer meter.stop()
	meter.limit = report.Limit
	summary, err := change(meter.show)
	report.Summary, report.Seconds, report.watched = summary, time.Since(start).Seconds(), meter.watchedFor()
	report.Interrupted, report.orphans = ctx.Err() != nil, l.orphans
	return err
}

// finish prints the report of a redrive, discard or import, and returns the error that the command ends with.
func (l *letterCommand) finish(ctx context.Context, report *report, err error, selected *filterFlags) error {
	if err != nil {
		report.Error = l.scrub(err.Error())
		if report.Interrupted && errors.Is(err, context.Canceled) {
			report.Error = "interrupted"
		}
	}
	if l.json {
		if err := l.printJSON(report); err != nil {
			return err
		}
	} else if err := report.print(l.env); err != nil {
		return err
	}
	if err != nil {
		return l.failed(ctx, report.Queue, err)
	}
	if report.Done == 0 && report.Kept == 0 {
		return l.nothing(report.Queue, selected)
	}
	return nil
}

// deathsWithin bounds the search for the causes of deaths.
const deathsWithin = 30 * time.Second

// deaths returns why letters that were redriven since a time have died again.
func (l *letterCommand) deaths(ctx context.Context, store *deadletter.Store, queue string, since time.Time) []letters.Group {
	ctx, cancel := context.WithTimeout(ctx, deathsWithin)
	defer cancel()
	since = since.Add(-time.Millisecond) // the history has milliseconds
	var groups letters.Groups
	for letter, err := range store.Browse(ctx, queue, letters.Filter{}) {
		if err != nil {
			break
		}
		redrives := letter.Redriven.Redrives
		if len(redrives) > 0 && redrives[len(redrives)-1].At.After(since) {
			groups.Add(letter)
		}
	}
	return groups.Sorted()
}

// report is what became of the letters.
type report struct {
	Command string `json:"command"`
	Queue   string `json:"queue,omitzero"`
	DryRun  bool   `json:"dry_run,omitzero"`
	letters.Summary
	Seconds     float64         `json:"seconds"`
	Interrupted bool            `json:"interrupted,omitzero"`
	Causes      []letters.Group `json:"causes,omitempty"` // why letters died again
	Export      string          `json:"export,omitzero"`
	Error       string          `json:"error,omitzero"`

	Limit     int  `json:"-"`
	confirmed bool // Limit is what the user confirmed, and not --limit
	orphans   bool
	watched   time.Duration // of Seconds: the canary
	edited    string        // the id of the one letter that was edited
}

// print prints the report in words. Its lines add up to the total.
func (r *report) print(e *env) error {
	if r.edited != "" {
		return r.printEdited(e)
	}
	var s strings.Builder
	word := map[string]string{"redrive": "sent back, confirmed and removed", "discard": "removed for good", "import": "put back, and confirmed"}[r.Command]
	if r.DryRun {
		word = map[string]string{"redrive": "would be sent back", "discard": "would be removed", "import": "would be put back"}[r.Command]
	}
	took := time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
	title := strings.ToUpper(r.Command[:1]) + r.Command[1:]
	if r.Queue != "" {
		title += " of " + safe(r.Queue)
	}
	switch {
	case r.DryRun:
		title += ", dry run"
		if r.Error != "" {
			title += " that stopped early"
		}
	case r.Error != "":
		title += ", stopped early"
	}
	s.WriteString(e.paint(text.Bold, fmt.Sprintf("%s (%v)", title, took)) + "\n")
	line := func(n int, meaning string, colour text.Color) {
		_, _ = fmt.Fprintf(&s, "  %s  %s\n", e.paint(colour, fmt.Sprintf("%11s", thousands(n))), meaning)
	}
	optional := func(n int, meaning string, colour text.Color) {
		if n > 0 {
			line(n, meaning, colour)
		}
	}
	if seconds := r.Seconds - r.watched.Seconds(); r.Done > 0 && !r.DryRun && r.Seconds >= 1 && seconds > 0 {
		word += fmt.Sprintf(" (%s/s)", thousands(int(float64(r.Done)/seconds+0.5)))
	}
	line(r.Done, word, text.FgGreen)
	optional(r.Other, "not selected by the filters: they stay", text.Reset)
	optional(r.Kept, r.kept(), text.FgYellow)
	unseen := "not looked at, because the command ended early: they stay"
	if r.limited() {
		unseen = "not looked at, beyond " + r.beyond() + ": they stay"
	}
	optional(r.Unseen, unseen, text.FgYellow)
	from := "letters were in the queue at the start"
	if r.Command == "import" {
		from = "letters were read from the file"
	}
	line(r.Total, from, text.Bold)
	if r.Redead > 0 {
		_, _ = fmt.Fprintf(&s, "%s\n", e.paint(text.FgRed, plural(r.Redead, "of the letters sent has died again until now.", "of the letters sent have died again until now.")))
	}
	if r.Doubtful > 0 {
		_, _ = fmt.Fprintf(&s, "%s\n", e.paint(text.FgYellow, r.doubtful()))
	}
	if len(r.Causes) > 0 {
		t := e.table("DIED AGAIN", "DEAD REASON", "ERROR TYPE", "REASON", "EXAMPLE")
		for _, g := range r.Causes {
			t.AppendRow(table.Row{thousands(g.Count), orDash(safe(string(g.DeadReason))), orDash(safe(g.ErrorType)), orDash(safe(g.Reason)), safe(g.Example)})
		}
		e.setCauseColumns(t, 4, 90)
		s.WriteString(t.Render() + "\n")
	}
	if r.Export != "" && r.Done > 0 {
		_, _ = fmt.Fprintf(&s, "The removed letters are in %s; `wmretry dead import` puts them back.\n", safe(r.Export))
	}
	_, err := fmt.Fprint(e.stdout, s.String())
	return err
}

// printEdited prints what became of the letter of an edit.
func (r *report) printEdited(e *env) error {
	became := "was sent back with the new body, confirmed and removed from "
	if r.Done == 0 {
		became = "was not sent, and stays in "
		if r.Kept == 0 && r.Error == "" {
			became = "is gone, and nothing was sent: it is no more in "
		}
	}
	_, err := fmt.Fprintf(e.stdout, "The letter %s %s%s.\n", safe(r.edited), became, safe(r.Queue))
	if r.Doubtful > 0 && err == nil {
		_, err = fmt.Fprintln(e.stdout, r.doubtful())
	}
	return err
}

// limited reports whether --limit has ended the command.
func (r *report) limited() bool { return r.Error == "" && r.Limit > 0 && r.Done >= r.Limit }

func (r *report) beyond() string {
	if r.confirmed {
		return "the number that you confirmed"
	}
	return "--limit"
}

func (r *report) kept() string {
	switch {
	case r.Command == "import":
		return "not put back"
	case r.limited():
		return "selected, and beyond " + r.beyond() + ": they stay"
	case r.Command == "redrive":
		return "selected, and not sent: they stay"
	}
	return "selected, and not removed: they stay"
}

// doubtful says what to do about letters without a confirm.
func (r *report) doubtful() string {
	if r.Command == "import" {
		return plural(r.Doubtful, "letter was", "letters were") + " published a second time, because the first time had no confirm: each may be in its queue twice."
	}
	return plural(r.Doubtful, "send has", "sends have") + " no confirm: the connection ended before the answer. Those letters were not lost: they stayed in the queue, and " +
		"may be handled twice. Handlers have to tolerate that: both have the same UUID. Run the command again for letters that are still there."
}
