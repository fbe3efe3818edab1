package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

func newTiersCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "tiers",
		Short: "Bring home what waits on a tier, and remove tiers that no schedule has",
		Long: `A changed schedule leaves the queues of its old tiers behind. What waits on them comes back to its work
queue when its delay is over. "drain" brings it back at once, and "prune" removes the empty queues.`,
	}
	c.AddCommand(newDrainCommand(e), newPruneCommand(e))
	return group(c)
}

func newDrainCommand(e *env) *cobra.Command {
	var (
		options letters.Redrive
		perTime string
	)
	c := &cobra.Command{
		Use:   "drain QUEUE TIER",
		Short: "Send what waits on a tier back to its work queue at once",
		Long: `Sends the messages that wait on a tier back to their work queue, each confirmed before it is removed
from the tier. They keep their failure record, so their retries go on.

QUEUE is the work queue, or the group of work queues that share their tiers: a drain sends the messages of all of
them. On a tier that is in use their retries begin early. Messages that a command has taken when it is killed come back
to the tier.`,
		Example: `  wmretry tiers drain orders 10m --dry-run
  wmretry tiers drain orders 1h --rate 50/s       # the provider is back early: do not wait for an hour`,
		Args: needs("QUEUE", "TIER"),
		RunE: func(c *cobra.Command, args []string) error {
			delay, err := backoff.ParseTier(args[1])
			if err != nil {
				return usage("TIER is %q: it must be the delay as status shows it, such as 10s, 5m or 1500ms: %w",
					args[1], err)
			}
			if options.Rate, err = rate(perTime); err != nil {
				return err
			}
			if err := ofFlags(options.Validate()); err != nil {
				return err
			}
			return e.drain(c.Context(), fmt.Sprintf("%s.%s.%v", args[0], e.prefix(), delay), options)
		},
		ValidArgsFunction: e.completeFirst,
	}
	flags := c.Flags()
	flags.BoolVar(&options.DryRun, "dry-run", false, "count the messages, and send none")
	flags.StringVar(&perTime, "rate", "", "send at most so many messages, such as 50/s")
	flags.IntVar(&options.Limit, "limit", 0, "send at most so many messages (default: all)")
	return c
}

func (e *env) drain(ctx context.Context, tier string, options letters.Redrive) error {
	return e.withRabbitMQ(ctx, func(store *deadletter.Store) error {
		report := newReport("drain", tier, options.DryRun, options.Limit)
		err := report.run(ctx, e, tier, func(show func(letters.Progress)) (letters.Summary, error) {
			options.Progress = show
			return store.Drain(ctx, tier, options)
		})
		if errors.Is(err, letters.ErrNoQueue) {
			return fmt.Errorf("%w; `wmretry status --all` lists the tiers", err)
		}
		return report.finish(e, err, &filterFlags{})
	})
}

func newPruneCommand(e *env) *cobra.Command {
	var (
		f      wantedFlags
		dryRun bool
	)
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove empty tiers that no schedule has",
		Long: `Removes empty tiers without a consumer. With --queue and --schedule, or --file: the tiers of these work
queues and their groups that the schedule does not have, the groups that these work queues have left, where no other
belongs to them, and the inboxes there. The delays of rules are "extra_tiers" of --file. Without
them: the tiers that no binding leads to any more, and those whose work queue is gone. It takes 15 seconds or more: the
broker's numbers of messages are that old. It needs the management API. A tier with messages stays: "tiers drain" sends
them back to their work queues.`,
		Example: `  wmretry tiers prune --dry-run
  wmretry tiers prune --queue orders --schedule "1s 5s 25s"   # all other tiers of orders`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return e.prune(c.Context(), &f, dryRun) },
	}
	f.add(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	return c
}

func (e *env) prune(ctx context.Context, f *wantedFlags, dryRun bool) error {
	options := deadletter.Prune{DryRun: dryRun}
	if f.given() {
		wanted, err := f.wanted(e.prefix())
		if err != nil {
			return err
		}
		options.Current = topologiesOf(wanted)
	}
	return e.withRabbitMQ(ctx, func(store *deadletter.Store) error {
		pruned, err := store.Prune(ctx, options)
		switch {
		case err != nil:
			return err
		case e.json:
			return e.printJSON(pruned)
		}
		verb := "removed"
		if dryRun {
			verb = "would be removed"
		}
		for _, name := range pruned.Removed {
			_, _ = fmt.Fprintf(e.stdout, "%s  %s\n", e.paint(text.FgGreen, verb), safe(name))
		}
		for _, name := range pruned.Left {
			_, _ = fmt.Fprintf(e.stdout, "%s  %s: it has a consumer, or messages, which `wmretry tiers drain` sends to "+
				"their work queue if it exists\n",
				e.paint(text.FgYellow, "left"), safe(name))
		}
		if len(pruned.Removed)+len(pruned.Left) == 0 {
			_, err = fmt.Fprintln(e.stdout, "No tier is retired. Which tiers a schedule has is only known with "+
				"--queue and --schedule, or --file.")
		}
		return err
	})
}
