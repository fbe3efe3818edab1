package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const defaultPrefix = "retry"

type statusFlags struct {
	wantedFlags
	all bool
}

func newStatusCommand(e *env) *cobra.Command {
	var f statusFlags
	c := &cobra.Command{
		Use:   "status [QUEUE...]",
		Short: "Every work queue with its tiers, dead letters and orphans",
		Long: `Shows work queues, what waits on their tiers, their dead letters, and the orphans. The management API
finds the queues; its figures are up to ten seconds old, and those of ready messages and consumers are asked for
again, of up to 200 queues. Without it, name the work queues, and the schedule to see their tiers.

A tier is due at the latest after its whole delay: RabbitMQ does not show how long a message has waited. A tier is
retired when no schedule has it: without --schedule and --file, when no binding leads to it any more.`,
		Example: `  wmretry status
  wmretry status orders billing --json
  wmretry status orders --schedule "1s 5s 25s"   # and what waits on other tiers of orders`,
		RunE:              func(c *cobra.Command, args []string) error { return e.status(c, args, &f) },
		ValidArgsFunction: (&letterCommand{env: e}).completeQueue,
	}
	f.add(c)
	c.Flags().BoolVar(&f.all, "all", false, "show empty tiers, too")
	return c
}

func (e *env) status(c *cobra.Command, works []string, f *statusFlags) error {
	current, err := e.current(c, &f.wantedFlags, works)
	if err != nil {
		return err
	}
	var status deadletter.Status
	err = e.withStore(c.Context(), func(store *deadletter.Store) error {
		status, err = e.read(c.Context(), store, current, works)
		return err
	})
	if err != nil {
		return err
	}
	if e.json {
		return e.printJSON(status)
	}
	if _, err = fmt.Fprintln(e.stdout, strings.Join(e.statusLines(status, f), "\n")); err != nil {
		return err
	}
	e.hint(status, works)
	return nil
}

// hint names the work queues that there are, where one that was named does not exist.
func (e *env) hint(status deadletter.Status, named []string) {
	for _, w := range status.Queues {
		if !w.Missing || !slices.Contains(named, w.Name) {
			continue
		}
		names, err := e.queueNames(managementTimeout)
		if err != nil {
			return
		}
		works := slices.DeleteFunc(workQueues(names), func(name string) bool { return name == w.Name })
		what := "work queues with a dead-letter queue are "
		if like := slices.DeleteFunc(slices.Clone(works),
			func(name string) bool { return !strings.HasPrefix(name, w.Name) }); len(like) > 0 {
			works, what = like, "work queues whose name begins like it are "
		}
		if len(works) > 0 {
			_, _ = fmt.Fprintf(e.stderr, "wmretry: the queue %s does not exist; %s%s\n", safe(w.Name), what,
				someOf(works))
		}
	}
}

// current returns the topologies that the flags describe, or none.
func (e *env) current(c *cobra.Command, f *wantedFlags, works []string) ([]topology.Topology, error) {
	if f.file == "" && f.schedule == "" {
		for _, name := range []string{"jitter", "extra-tiers", "group"} {
			if c.Flags().Changed(name) {
				return nil, usage("--%s is set without --schedule: only the whole schedule shows which tiers are "+
					"in use", name)
			}
		}
		return nil, nil
	}
	if f.file == "" && len(works) == 0 {
		return nil, usage("--schedule is set, and no work queue is named: name those that have it, such as " +
			"wmretry status orders --schedule \"1s 5s\"")
	}
	wanted, err := f.wanted(c, e.prefix(), works)
	return topologiesOf(wanted), err
}

// guessed reports whether no address of the management API was named.
func (e *env) guessed() bool {
	return e.flags.management == "" && os.Getenv("AMQP_MANAGEMENT_URL") == ""
}

// read reads the status, by the management API if it answers.
func (e *env) read(
	ctx context.Context, store *deadletter.Store, current []topology.Topology, works []string,
) (deadletter.Status, error) {
	status, err := store.Status(ctx, current, works...)
	if err == nil || ctx.Err() != nil || !e.guessed() {
		return status, err
	}
	if len(works) == 0 && len(current) == 0 {
		return status, fmt.Errorf("%w; name its address with --management, or name the work queues: wmretry status "+
			"orders", err)
	}
	plain, openErr := e.openByName()
	if openErr != nil {
		return status, openErr
	}
	defer func() { _ = plain.Close() }()
	_, _ = fmt.Fprintf(e.stderr, "wmretry: without the management API: %s. Unacknowledged messages, retired tiers and "+
		"tiers without --schedule are not shown\n", e.scrub(err.Error()))
	return plain.Status(ctx, current, works...)
}
