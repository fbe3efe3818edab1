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
	return e.group("tiers", newDrainCommand(e), newPruneCommand(e))
}

func newDrainCommand(e *env) *cobra.Command {
	var options letters.Redrive
	flags := variables{"dry-run": &options.DryRun, "limit": &options.Limit, "rate": reads(&options.Rate, rate)}
	return e.command("tiers drain QUEUE TIER", flags, func(ctx context.Context, args []string) error {
		delay, err := backoff.ParseTier(args[1])
		if err != nil {
			return usage("TIER is %q: it must be the delay as status shows it, such as 10s, 5m or 1500ms: %w",
				args[1], err)
		}
		if err := ofFlags(options.Validate()); err != nil {
			return err
		}
		return e.drain(ctx, fmt.Sprintf("%s.%s.%v", args[0], e.prefix(), delay), options)
	})
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
		return report.finish(e, err)
	})
}

func newPruneCommand(e *env) *cobra.Command {
	var (
		f      wantedFlags
		dryRun bool
	)
	flags := f.with(variables{"dry-run": &dryRun})
	return e.command("tiers prune", flags, func(ctx context.Context, _ []string) error {
		return e.prune(ctx, &f, dryRun)
	})
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
