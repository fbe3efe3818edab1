package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

func newDrainCommand(e *env) *cobra.Command {
	var o letters.Redrive
	flags := variables{"dry-run": &o.DryRun, "limit": &o.Limit, "rate": reads(&o.Rate, rate)}
	return e.command("tiers drain QUEUE TIER", flags, func(ctx context.Context, args []string) error {
		delay, err := backoff.ParseTier(args[1])
		if err != nil {
			return usage("TIER is %q: it must be the delay as status shows it, such as 10s, 5m or 1500ms: %w",
				args[1], err)
		}
		if err := cmp.Or(flags.read(), ofFlags(o.Validate())); err != nil {
			return err
		}
		tier := fmt.Sprintf("%s.%s.%v", args[0], e.prefix(), delay)
		return e.withRabbitMQ(ctx, func(store *deadletter.Store) error {
			r := e.report("drain", tier, tier, o)
			o.Progress = r.meter.show
			summary, err := store.Drain(ctx, tier, o)
			if errors.Is(err, letters.ErrNoQueue) {
				return fmt.Errorf("%w; `wmretry status --all` lists the tiers", err)
			}
			return r.end(ctx, summary).finish(err)
		})
	})
}

// prunedTiers is what a prune has done, or would do.
type prunedTiers struct {
	deadletter.Pruned
	DryRun bool
}

func newPruneCommand(e *env) *cobra.Command {
	var (
		f wantedFlags
		o deadletter.Prune
	)
	flags := f.with(variables{"dry-run": &o.DryRun})
	return e.command("tiers prune", flags, func(ctx context.Context, _ []string) error {
		if f.given() {
			wanted, err := f.wanted(e.prefix())
			if err != nil {
				return err
			}
			o.Current = topologiesOf(wanted)
		}
		return e.withRabbitMQ(ctx, func(store *deadletter.Store) error {
			pruned, err := store.Prune(ctx, o)
			if err != nil {
				return err
			}
			return e.output(pruned, func() string { return e.text("pruned", prunedTiers{pruned, o.DryRun}) })
		})
	})
}
