package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/retry"
)

// keyFlags are the flags of the commands of keys.
type keyFlags struct {
	wait         time.Duration
	limit, queue string
}

func newKeyCommand(e *env) *cobra.Command {
	f := &keyFlags{}
	c := &cobra.Command{
		Use:   "key",
		Short: "Keys of handlers with Breaker.Key, such as tenants: list, pause, limit",
		Long: `A handler with Breaker.Key pauses a key whose messages fail, and limits one whose calls are slow. These
commands ask the processes with such handlers. A pause or a limit of yours is one of each process. It ends by itself. A
process that starts takes it over from the others: it ends when all processes are stopped together.`,
	}
	waitFlag(c, &f.wait)
	c.PersistentFlags().StringVar(&f.queue, "queue", "", "only handlers of this work queue (default: all)")
	pause := &cobra.Command{
		Use:   "pause KEY --for DURATION",
		Short: "Let no message of a key pass for a time",
		Long: `The messages of the key wait on a tier, uncounted. Those whose handler runs go on. Exit code 1: no process has
a handler with Breaker.Key.`,
		Example: "  wmretry key pause customer-7 --for 1h",
		Args:    needs("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			return e.limitKey(c.Context(), f, args[0], 0)
		},
	}
	limit := &cobra.Command{
		Use:   "limit KEY CALLS --for DURATION",
		Short: "Limit how many calls a key has at the same time, in each process",
		Long: `What is over waits on a tier, uncounted. CALLS is 1 or more. Exit code 1: no process has a handler with
Breaker.Key.`,
		Example: "  wmretry key limit customer-7 2 --for 7d",
		Args:    needs("KEY", "CALLS"),
		RunE: func(c *cobra.Command, args []string) error {
			calls, err := strconv.Atoi(args[1])
			if err != nil || calls < 1 {
				return usage("CALLS is %s: it must be a number of 1 or more", safe(strconv.Quote(args[1])))
			}
			return e.limitKey(c.Context(), f, args[0], calls)
		},
	}
	for _, own := range []*cobra.Command{pause, limit} {
		own.Flags().StringVar(&f.limit, "for", "", "how long, such as 1h or 7d; at most 30d. Required")
	}
	c.AddCommand(
		&cobra.Command{
			Use:     "list",
			Short:   "The keys that are limited, and those whose messages had to wait most often",
			Long:    `Shows 20 keys of each handler and process at most: those that are limited, then those that had to wait.`,
			Example: "  wmretry key list\n  wmretry key list --queue webhooks --json",
			Args:    cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return e.listKeys(c.Context(), f)
			},
		},
		pause, limit,
		&cobra.Command{
			Use:   "resume KEY",
			Short: "End a pause or a limit of yours",
			Long: `A pause because the key fails or is slow stays: it ends by itself. What waits comes back within ten
minutes, or when its tier ends. With exit code 1 no process had a pause or a limit of yours.`,
			Example: "  wmretry key resume customer-7",
			Args:    needs("KEY"),
			RunE: func(c *cobra.Command, args []string) error {
				return e.decide(c.Context(), f, command.Request{
					Key: args[0], Calls: command.NoLimit, Lasts: command.LongestLimit,
				}, "is resumed", "no process has a pause or a limit of yours for the key "+safe(strconv.Quote(args[0])))
			},
		},
	)
	return group(c)
}

func (e *env) limitKey(ctx context.Context, f *keyFlags, key string, calls int) error {
	lasts, err := age("--for", f.limit)
	if err != nil {
		return err
	}
	if lasts <= 0 || lasts > command.LongestLimit {
		return usage("--for is %q: it must be above 0 and at most 30d", f.limit)
	}
	what := "is paused"
	if calls > 0 {
		what = "has " + plural(calls, "call", "calls") + " at the same time"
	}
	what += " until " + e.time(time.Now().Add(lasts))
	return e.decide(ctx, f, command.Request{Key: key, Calls: calls, Lasts: lasts}, what, "no handler has taken the limit")
}

// decide sends a decision about a key, and prints what it has done, or returns what none means.
func (e *env) decide(ctx context.Context, f *keyFlags, r command.Request, did, none string) error {
	r.Do, r.At = command.Limit, time.Now().UnixNano()
	all, err := e.askKeys(ctx, f, r)
	if err != nil {
		return err
	}
	seen := 0
	for _, a := range all.Answers {
		seen += a.Seen
	}
	switch {
	case all.Decided == 0:
		return errors.New(none)
	case seen == 0 && r.Calls >= 0:
		_, _ = fmt.Fprintf(e.stderr, "warning: no process has seen a message of the key %s\n", safe(strconv.Quote(r.Key)))
	}
	if e.json {
		return nil
	}
	_, err = fmt.Fprintf(e.stdout, "%s %s, in %s of %s\n", safe(r.Key), did,
		plural(all.Decided, "handler", "handlers"), plural(len(all.Answers), "process", "processes"))
	return err
}

// askKeys asks the processes with handlers that have Breaker.Key. It fails where there is none.
func (e *env) askKeys(ctx context.Context, f *keyFlags, r command.Request) (all orderAnswers, err error) {
	if r.Do == command.Limit && r.Key == "" {
		return all, usage("KEY is empty: messages without a key have no breaker of their own")
	}
	r.Queue = f.queue
	all, err = e.askProcesses(ctx, r, f.wait)
	if err == nil && !slices.ContainsFunc(all.Answers, func(a command.Answer) bool { return len(a.Keyed) > 0 }) {
		err = errors.New("no process that has answered has such a handler with Breaker.Key")
	}
	return all, err
}

func (e *env) listKeys(ctx context.Context, f *keyFlags) error {
	all, err := e.askKeys(ctx, f, command.Request{Do: command.Keys})
	if err != nil || e.json {
		return err
	}
	text := e.keyTable(all.Answers, false)
	if text == "" {
		text = "no key is limited, and none had to wait"
	}
	_, err = fmt.Fprintln(e.stdout, text)
	return err
}

// limitedKeys returns a table of the keys that are limited, for the status of a broker. It is empty where no process
// answers, or the user may not ask.
func (e *env) limitedKeys(ctx context.Context, store *backend.Store) string {
	asked, _ := command.AskerOf(store.Rabbit)(ctx, command.Request{Do: command.Keys}, time.Second)
	return e.keyTable(asked.Answers, true)
}

// keyTable returns a row for each key of a handler and process, or only those that are limited. Empty: there is none.
func (e *env) keyTable(answers []command.Answer, limited bool) string {
	type row struct {
		retry.KeyHealth
		handler, process string
	}
	var rows []row
	for _, a := range answers {
		for _, h := range a.Keyed {
			for _, key := range h.Keys {
				if !limited || key.Paused != "" {
					rows = append(rows, row{key, h.Name, processOf(a)})
				}
			}
		}
	}
	if len(rows) == 0 {
		return ""
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		if (a.Paused == "") != (b.Paused == "") {
			return cmp.Compare(b.Paused, a.Paused) // those that are limited first
		}
		return cmp.Compare(a.Key, b.Key)
	})
	table := e.table("KEY", "STATE", "UNTIL", "CALLS", "WAITED", "HANDLER", "PROCESS")
	for _, r := range rows {
		until, calls := "", "all"
		if r.Paused != "" {
			calls = thousands(r.Limit)
		}
		if !r.Until.IsZero() {
			until = e.time(r.Until)
		}
		table.AppendRow([]any{keyWord(r.Key), r.Paused, until, calls, thousands(int(r.Parked)), safe(r.handler),
			safe(r.process)})
	}
	return table.Render()
}
