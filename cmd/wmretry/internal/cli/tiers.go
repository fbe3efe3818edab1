package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

func newTiersCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "tiers",
		Short: "Bring home what waits on a tier, and remove tiers that no schedule has",
		Long: `A changed schedule leaves the queues of its old tiers behind. What waits on them comes back to its work queue when its delay is
over. These commands bring it back at once, and remove the empty queues. wmretry status shows which tiers are retired.`,
	}
	c.AddCommand(newDrainCommand(e), newPruneCommand(e))
	return group(c)
}

type drainFlags struct {
	wantedFlags
	force, keep, dryRun bool
	rate                string
	limit               int
}

func newDrainCommand(e *env) *cobra.Command {
	var f drainFlags
	c := &cobra.Command{
		Use:   "drain QUEUE TIER",
		Short: "Send what waits on a tier back to its work queue at once",
		Long: `Sends the messages that wait on a tier back to their work queue, each confirmed before it is removed from the tier. They keep their
failure record, so their retries go on. Then an empty retired tier is removed, which takes 15 seconds or more: the broker's numbers of
messages are that old.

QUEUE is the work queue, or the group of work queues that share their tiers. A tier that is in use needs --force, and is not removed.
Messages that a command has taken when it is killed come back to the tier.`,
		Example: `  wmretry tiers drain orders 10m
  wmretry tiers drain orders 10m --schedule "1s 5s 25s"   # retired, because this schedule does not have it
  wmretry tiers drain orders 1h --force --rate 50/s       # the provider is back early: do not wait for an hour`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s needs QUEUE and TIER, such as orders 10m, and has %s", c.CommandPath(), plural(len(args), "argument", "arguments"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return e.drain(c, args[0], args[1], &f) },
		ValidArgsFunction: func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return (&letterCommand{env: e}).completeQueue()
		},
	}
	f.add(c, true)
	flags := c.Flags()
	flags.BoolVar(&f.force, "force", false, "also a tier that is in use")
	flags.BoolVar(&f.keep, "keep", false, "do not remove the empty queue")
	flags.BoolVar(&f.dryRun, "dry-run", false, "count the messages, and send none")
	flags.StringVar(&f.rate, "rate", "", "send at most so many messages, such as 50/s")
	flags.IntVar(&f.limit, "limit", 0, "send at most so many messages (default: all)")
	return c
}

// memberOf names a work queue of a group. Only the names of the group's tiers matter.
func memberOf(group string) string { return "any work queue of " + group }

// drained is what tiers drain prints as JSON.
type drained struct {
	Tier string `json:"tier"`
	letters.Summary
	Removed     bool    `json:"removed"`
	Interrupted bool    `json:"interrupted,omitzero"`
	Seconds     float64 `json:"seconds"`
	Error       string  `json:"error,omitzero"`
}

func (e *env) drain(c *cobra.Command, of, word string, f *drainFlags) error {
	delay, err := backoff.ParseTier(word)
	if err != nil {
		return usage("TIER is %q: it must be the delay as status shows it, such as 10s, 5m or 1500ms: %w", word, err)
	}
	options := letters.Redrive{Limit: f.limit, DryRun: f.dryRun}
	if err := limit("--limit", f.limit); err != nil {
		return err
	}
	if f.rate != "" {
		if options.Rate, err = rate(f.rate); err != nil {
			return err
		}
	}
	works := []string{of}
	if f.group == of {
		works = []string{memberOf(of)}
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
	queue := fmt.Sprintf("%s.%s.%v", of, e.prefix(), delay)
	retired, err := e.isRetired(ctx, store, current, of, queue, f)
	if err != nil {
		return err
	}
	start := time.Now()
	meter := e.meter("drain of "+safe(queue), "sent")
	defer meter.stop()
	options.Progress = meter.show
	summary, err := store.Drain(ctx, queue, options)
	meter.stop()
	if err != nil && summary == (letters.Summary{}) {
		if errors.Is(err, letters.ErrNoQueue) {
			err = fmt.Errorf("%w; wmretry status --all lists the tiers", err)
		}
		return homeless(queue, err)
	}
	err = homeless(queue, err)
	result := drained{Tier: queue, Summary: summary, Interrupted: ctx.Err() != nil}
	if err == nil && retired && !f.keep && !f.dryRun && !options.DryRun {
		if !e.json {
			_, _ = fmt.Fprintf(e.stderr, "%s sent. Waits until the broker states that %s is empty (15s or more), and removes it\n", plural(summary.Done, "message", "messages"), safe(queue))
		}
		var pruned deadletter.Pruned
		if pruned, err = pruneDrained(ctx, store, deadletter.Prune{Current: current, Only: []string{queue}}); err == nil {
			result.Removed = slices.Contains(pruned.Removed, queue)
		}
	}
	result.Seconds = time.Since(start).Seconds()
	if err != nil {
		result.Error = e.scrub(err.Error())
	}
	if e.json {
		return errors.Join(e.printJSON(result), err)
	}
	return errors.Join(e.printDrained(result, retired, f), err)
}

// homeless says what to do about a message on a tier that does not name its work queue.
func homeless(tier string, err error) error {
	if !errors.Is(err, letters.ErrNoTarget) || !strings.Contains(err.Error(), "Redrive.To") {
		return err
	}
	return fmt.Errorf("%w: a message on %s does not name its work queue, so it cannot be sent home and stays on the tier; list it with `wmretry dead list --as-is %s`",
		letters.ErrNoTarget, safe(tier), shellWord(tier))
}

// pruneWithin bounds the attempts to remove tiers that were drained a moment ago.
const pruneWithin = time.Minute

// pruneDrained removes tiers that were drained a moment ago. The figures of the management API are late: they can state no messages, then
// those of before the drain, and then none again.
func pruneDrained(ctx context.Context, store *deadletter.Store, options deadletter.Prune) (all deadletter.Pruned, err error) {
	deadline := time.Now().Add(pruneWithin)
	for {
		pruned, err := store.Prune(ctx, options)
		all.Removed, all.Left = append(all.Removed, pruned.Removed...), pruned.Left
		if err != nil || len(pruned.Left) == 0 || time.Now().After(deadline) {
			slices.Sort(all.Removed)
			return all, err
		}
		select {
		case <-ctx.Done():
			return all, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// ofGroup is the same command for the group of a work queue.
func (f *drainFlags) ofGroup(group, tier string) string {
	command := "wmretry tiers drain " + shellWord(group) + " " + tier[strings.LastIndexByte(tier, '.')+1:]
	as := f.wantedFlags
	as.group = group
	if command += as.again(); f.force {
		command += " --force"
	}
	return command
}

// isRetired reports whether no schedule has the tier. A tier that is in use is an error, unless it is forced.
func (e *env) isRetired(ctx context.Context, store *deadletter.Store, current []topology.Topology, of, queue string, f *drainFlags) (bool, error) {
	status, err := store.StatusWith(ctx, current)
	if err != nil {
		if f.force && e.guessed() {
			return false, nil
		}
		return false, fmt.Errorf("only the management API shows whether %s is in use: %w; name its address with --management, or use --force", safe(queue), err)
	}
	var tiers []time.Duration
	for _, w := range status.Queues {
		for _, t := range w.Tiers {
			switch {
			case t.Queue == queue && t.Missing:
			case t.Queue == queue && !t.Retired && !f.force:
				return false, fmt.Errorf("the tier %s is in use: what waits there comes back by itself within %v; --force sends it back now, "+
					"--schedule names the delays that are in use", safe(queue), backoff.Tier(t.Delay))
			case t.Queue == queue:
				return t.Retired, nil
			case w.Name == of && t.Group != "":
				return false, fmt.Errorf("%s is in the group %s, whose work queues share their tiers: %s sends back the messages of all of them",
					safe(of), safe(t.Group), e.advised(f.ofGroup(t.Group, queue)))
			case w.Name == of || t.Group == of:
				tiers = append(tiers, t.Delay)
			}
		}
	}
	for _, d := range status.Stray {
		if d.Queue == queue {
			return true, nil
		}
	}
	slices.Sort(tiers)
	tiers = slices.Compact(tiers)
	if len(tiers) == 0 {
		return false, fmt.Errorf("%s has no tiers with the prefix %s: QUEUE is a work queue, or a group of work queues; wmretry status lists them", safe(of), safe(e.prefix()))
	}
	words := make([]string, len(tiers))
	for i, delay := range tiers {
		words[i] = backoff.Tier(delay).String()
	}
	return false, fmt.Errorf("there is no tier %s: %s has the tiers %s", safe(queue), safe(of), strings.Join(words, ", "))
}

func (e *env) printDrained(r drained, retired bool, f *drainFlags) error {
	var s strings.Builder
	took := time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
	_, _ = fmt.Fprintf(&s, "%s\n", e.paint(text.Bold, fmt.Sprintf("Drain of %s (%v)", safe(r.Tier), took)))
	line := func(n int, meaning string) { _, _ = fmt.Fprintf(&s, "  %11s  %s\n", thousands(n), meaning) }
	if f.dryRun {
		line(r.Done, "would be sent back")
	} else {
		line(r.Done, "sent back to their work queue, confirmed and removed from the tier")
	}
	if r.Kept > 0 {
		line(r.Kept, "not sent: they stay on the tier")
	}
	if r.Unseen > 0 {
		unseen := "came back by themselves meanwhile"
		if r.Error != "" || r.Interrupted || f.limit > 0 {
			unseen = "not looked at: they stay on the tier"
		}
		line(r.Unseen, unseen)
	}
	line(r.Total, "messages were on the tier at the start")
	if r.Doubtful > 0 {
		_, _ = fmt.Fprintf(&s, "%s no confirm: those messages were not lost, and may be handled twice.\n", plural(r.Doubtful, "send has", "sends have"))
	}
	switch {
	case r.Removed:
		_, _ = fmt.Fprintf(&s, "The empty queue %s is removed.\n", safe(r.Tier))
	case retired && !f.keep && !f.dryRun && r.Error == "":
		_, _ = fmt.Fprintf(&s, "The queue %s stays, because it is not empty or has a consumer; wmretry tiers prune removes it later.\n", safe(r.Tier))
	}
	_, err := fmt.Fprint(e.stdout, s.String())
	return err
}

type pruneFlags struct {
	wantedFlags
	queues        []string
	drain, dryRun bool
}

func newPruneCommand(e *env) *cobra.Command {
	var f pruneFlags
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove empty tiers that no schedule has",
		Long: `Removes the queues of retired tiers that are empty and have no consumer. Without --schedule and --file, these are the tiers that
no binding leads to any more, and those whose work queue is gone. It takes 15 seconds or more: the broker's numbers of messages
are that old. It needs the management API. A tier with messages stays, unless --drain sends them back to their work queues first.`,
		Example: `  wmretry tiers prune --dry-run
  wmretry tiers prune
  wmretry tiers prune --drain                                 # sends home what waits on them first
  wmretry tiers prune --queue orders --schedule "1s 5s 25s"   # all other tiers of orders`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.prune(c, &f) },
	}
	f.add(c, true)
	c.Flags().StringArrayVar(&f.queues, "queue", nil, "work queue that has the --schedule; may be repeated")
	c.Flags().BoolVar(&f.drain, "drain", false, "first send the messages of retired tiers back to their work queues")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	return c
}

func (e *env) prune(c *cobra.Command, f *pruneFlags) error {
	if len(f.queues) > 0 && f.schedule == "" && f.file == "" {
		return usage("--queue is set without --schedule: only the schedule shows which of its tiers are in use")
	}
	if f.group != "" && len(f.queues) == 0 {
		f.queues = []string{memberOf(f.group)}
	}
	current, err := e.current(c, &f.wantedFlags, f.queues)
	if err != nil {
		return err
	}
	ctx := c.Context()
	store, err := e.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	planned, err := store.Prune(ctx, deadletter.Prune{Current: current, DryRun: true})
	if err != nil {
		return err
	}
	pruned := planned
	if !f.dryRun && (len(planned.Removed) > 0 || f.drain && len(planned.Left) > 0) {
		only := planned.Removed
		if f.drain {
			if err := e.drainAll(ctx, store, planned.Left); err != nil {
				return err
			}
			only = append(only, planned.Left...)
		}
		if !e.json {
			_, _ = fmt.Fprintf(e.stderr, "Waits until the broker states that %s empty (15s or more)\n", plural(len(only), "queue is", "queues are"))
		}
		options := deadletter.Prune{Current: current, Only: only}
		if f.drain {
			pruned, err = pruneDrained(ctx, store, options)
		} else {
			pruned, err = store.Prune(ctx, options)
		}
		if err != nil {
			return err
		}
		if !f.drain {
			pruned.Left = append(pruned.Left, planned.Left...)
			slices.Sort(pruned.Left)
		}
	}
	if e.json {
		return e.printJSON(pruned)
	}
	verb := "removed"
	if f.dryRun {
		verb = "would be removed"
	}
	for _, name := range pruned.Removed {
		_, _ = fmt.Fprintf(e.stdout, "%s  %s\n", e.paint(text.FgGreen, verb), safe(name))
	}
	for _, name := range pruned.Left {
		_, _ = fmt.Fprintf(e.stdout, "%s  %s: it has messages or a consumer; wmretry tiers drain empties it\n", e.paint(text.FgYellow, "left"), safe(name))
	}
	if len(pruned.Removed)+len(pruned.Left) == 0 {
		found := "No tier is retired."
		if len(current) == 0 {
			found += " Which tiers a schedule has is only known with --queue and --schedule (or --file): without them, a tier is retired " +
				"when no binding leads to it."
		}
		_, _ = fmt.Fprintln(e.stdout, found)
	}
	return nil
}

// drainAll sends home what waits on tiers.
func (e *env) drainAll(ctx context.Context, store *deadletter.Store, tiers []string) error {
	for _, tier := range tiers {
		summary, err := store.Drain(ctx, tier, letters.Redrive{})
		if !e.json {
			_, _ = fmt.Fprintf(e.stderr, "%s: %s sent back\n", safe(tier), plural(summary.Done, "message", "messages"))
		}
		if err != nil {
			return fmt.Errorf("drain of %s: %w", safe(tier), homeless(tier, err))
		}
	}
	return nil
}
