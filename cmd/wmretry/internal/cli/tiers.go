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
		Long: `A changed schedule leaves the queues of its old tiers behind. What waits on them comes back to its work
queue when its delay is over. "drain" brings it back at once, and "prune" removes the empty queues. wmretry status
shows which tiers are retired.`,
	}
	c.AddCommand(newDrainCommand(e), newPruneCommand(e))
	return group(c)
}

type drainFlags struct {
	wantedFlags
	force, dryRun bool
	rate          string
	limit         int
}

func newDrainCommand(e *env) *cobra.Command {
	var f drainFlags
	c := &cobra.Command{
		Use:   "drain QUEUE TIER",
		Short: "Send what waits on a tier back to its work queue at once",
		Long: `Sends the messages that wait on a tier back to their work queue, each confirmed before it is removed
from the tier. They keep their failure record, so their retries go on.

QUEUE is the work queue, or the group of work queues that share their tiers. A tier that is in use needs --force.
Messages that a command has taken when it is killed come back to the tier.`,
		Example: `  wmretry tiers drain orders 10m
  wmretry tiers drain orders 10m --schedule "1s 5s 25s"   # retired, because this schedule does not have it
  wmretry tiers drain orders 1h --force --rate 50/s       # the provider is back early: do not wait for an hour`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s needs QUEUE and TIER, such as orders 10m, and has %s",
					c.CommandPath(), plural(len(args), "argument", "arguments"))
			}
			return nil
		},
		RunE:              func(c *cobra.Command, args []string) error { return e.drain(c, args[0], args[1], &f) },
		ValidArgsFunction: (&letterCommand{env: e}).completeFirst,
	}
	f.add(c)
	flags := c.Flags()
	flags.BoolVar(&f.force, "force", false, "also a tier that is in use")
	flags.BoolVar(&f.dryRun, "dry-run", false, "count the messages, and send none")
	flags.StringVar(&f.rate, "rate", "", "send at most so many messages, such as 50/s")
	flags.IntVar(&f.limit, "limit", 0, "send at most so many messages (default: all)")
	return c
}

// memberOf names a work queue of a group. Only the names of the group's tiers matter.
func memberOf(group string) string { return "any work queue of " + group }

func (e *env) drain(c *cobra.Command, of, word string, f *drainFlags) error {
	delay, err := backoff.ParseTier(word)
	if err != nil {
		return usage("TIER is %q: it must be the delay as status shows it, such as 10s, 5m or 1500ms: %w", word, err)
	}
	if err := limit("--limit", f.limit); err != nil {
		return err
	}
	options := letters.Redrive{Limit: f.limit, DryRun: f.dryRun}
	if options.Rate, err = rate(f.rate); err != nil {
		return err
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
	queue := fmt.Sprintf("%s.%s.%v", of, e.prefix(), delay)
	return e.withStore(ctx, func(store *deadletter.Store) error {
		if err := e.mayDrain(ctx, store, current, of, queue, f); err != nil {
			return err
		}
		report := newReport("drain", queue, f.dryRun, f.limit)
		err := report.run(ctx, e, queue, func(show func(letters.Progress)) (letters.Summary, error) {
			options.Progress = show
			return store.Drain(ctx, queue, options)
		})
		return report.finish(e, err, func(err error) error { return homeless(queue, err) })
	})
}

// homeless adds what to do about a message on a tier that does not name its work queue, and about a tier that does
// not exist.
func homeless(tier string, err error) error {
	switch {
	case errors.Is(err, letters.ErrNoQueue):
		return fmt.Errorf("%w; wmretry status --all lists the tiers", err)
	case !errors.Is(err, letters.ErrNoTarget) || !strings.Contains(err.Error(), "Redrive.To"):
		return err
	}
	return fmt.Errorf("%w: a message on %s does not name its work queue, so it cannot be sent home and stays on the "+
		"tier; list it with `wmretry dead list --as-is %s`", letters.ErrNoTarget, safe(tier), shellWord(tier))
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

// mayDrain returns an error for a tier that does not exist, and, without --force, for one that is in use.
func (e *env) mayDrain(
	ctx context.Context, store *deadletter.Store, current []topology.Topology, of, queue string, f *drainFlags,
) error {
	status, err := store.Status(ctx, current)
	if err != nil {
		if f.force && e.guessed() {
			return nil
		}
		return fmt.Errorf("only the management API shows whether %s is in use: %w; name its address with "+
			"--management, or use --force", safe(queue), err)
	}
	var tiers []time.Duration
	for _, w := range status.Queues {
		for _, t := range w.Tiers {
			switch {
			case t.Queue == queue && t.Missing:
			case t.Queue == queue && !t.Retired && !f.force:
				return fmt.Errorf("the tier %s is in use: what waits there comes back by itself within %v; "+
					"--force sends it back now, "+
					"--schedule names the delays that are in use", safe(queue), backoff.Tier(t.Delay))
			case t.Queue == queue:
				return nil
			case w.Name == of && t.Group != "":
				return fmt.Errorf("%s is in the group %s, whose work queues share their tiers: %s sends back the "+
					"messages of all of them", safe(of), safe(t.Group), e.advised(f.ofGroup(t.Group, queue)))
			case w.Name == of || t.Group == of:
				tiers = append(tiers, t.Delay)
			}
		}
	}
	if slices.ContainsFunc(status.Stray, func(d deadletter.Depth) bool { return d.Queue == queue }) {
		return nil
	}
	slices.Sort(tiers)
	if tiers = slices.Compact(tiers); len(tiers) == 0 {
		return fmt.Errorf("%s has no tiers with the prefix %s: QUEUE is a work queue, or a group of work queues; "+
			"wmretry status lists them", safe(of), safe(e.prefix()))
	}
	words := make([]string, len(tiers))
	for i, delay := range tiers {
		words[i] = backoff.Tier(delay).String()
	}
	return fmt.Errorf("there is no tier %s: %s has the tiers %s", safe(queue), safe(of), strings.Join(words, ", "))
}

func newPruneCommand(e *env) *cobra.Command {
	var (
		f      wantedFlags
		dryRun bool
	)
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove empty tiers that no schedule has",
		Long: `Removes the queues of retired tiers that are empty and have no consumer. Without --schedule and --file,
these are the tiers that no binding leads to any more, and those whose work queue is gone. It takes 15 seconds or
more: the broker's numbers of messages are that old. It needs the management API. A tier with messages stays: "tiers
drain" sends them back to their work queues.`,
		Example: `  wmretry tiers prune --dry-run
  wmretry tiers prune
  wmretry tiers prune --queue orders --schedule "1s 5s 25s"   # all other tiers of orders`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.prune(c, &f, dryRun) },
	}
	f.add(c)
	f.addQueues(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	return c
}

func (e *env) prune(c *cobra.Command, f *wantedFlags, dryRun bool) error {
	if len(f.queues) > 0 && f.schedule == "" && f.file == "" {
		return usage("--queue is set without --schedule: only the schedule shows which of its tiers are in use")
	}
	works := f.queues
	if f.queues = nil; f.group != "" && len(works) == 0 {
		works = []string{memberOf(f.group)}
	}
	current, err := e.current(c, f, works)
	if err != nil {
		return err
	}
	ctx := c.Context()
	return e.withStore(ctx, func(store *deadletter.Store) error {
		pruned, err := store.Prune(ctx, deadletter.Prune{Current: current, DryRun: true})
		if err == nil && !dryRun && len(pruned.Removed) > 0 {
			if !e.json {
				_, _ = fmt.Fprintf(e.stderr, "Waits until the broker states that %s empty (15s or more)\n",
					plural(len(pruned.Removed), "queue is", "queues are"))
			}
			pruned, err = store.Prune(ctx, deadletter.Prune{Current: current})
		}
		if err != nil {
			return err
		}
		if e.json {
			return e.printJSON(pruned)
		}
		return e.printPruned(pruned, len(current) > 0, dryRun)
	})
}

func (e *env) printPruned(pruned deadletter.Pruned, known, dryRun bool) error {
	verb := "removed"
	if dryRun {
		verb = "would be removed"
	}
	var s strings.Builder
	for _, name := range pruned.Removed {
		_, _ = fmt.Fprintf(&s, "%s  %s\n", e.paint(text.FgGreen, verb), safe(name))
	}
	for _, name := range pruned.Left {
		_, _ = fmt.Fprintf(&s, "%s  %s: it has messages or a consumer; wmretry tiers drain empties it\n",
			e.paint(text.FgYellow, "left"), safe(name))
	}
	if s.Len() == 0 {
		s.WriteString("No tier is retired.")
		if !known {
			s.WriteString(" Which tiers a schedule has is only known with --queue and --schedule (or --file): " +
				"without them, a tier is retired when no binding leads to it.")
		}
		s.WriteString("\n")
	}
	_, err := fmt.Fprint(e.stdout, s.String())
	return err
}
