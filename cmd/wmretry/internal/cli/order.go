package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

func newOrderCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "order",
		Short: "Handlers that keep an order: partitions, and keys that wait for you",
		Long: `A handler with Order.Block keeps the messages of a key waiting where one of them would become a dead letter.
These commands ask the processes that consume QUEUE, the work queue. "skip" makes the blocked message a dead letter,
and "retry" handles it again, as if it had not failed: then those behind it follow in their order.`,
	}
	var wait time.Duration
	waitFlag(c, &wait)
	c.AddCommand(
		&cobra.Command{
			Use:   "status QUEUE",
			Short: "Each partition with its process, and the blocked keys",
			Long: `Shows the partitions of a work queue: which process has got messages of each since it began to consume, how
many messages wait for their retry or are blocked (WAITING), how many of their keys wait behind them, and for how long
the process has had the oldest message. Where WAITING and BEHIND are the handler's Prefetch together, the partition
stands.`,
			Example: `  wmretry order status orders
  wmretry order status orders --json`,
			Args: needs("QUEUE"),
			RunE: func(c *cobra.Command, args []string) error {
				return e.order(c.Context(), command.Request{Queue: args[0], Do: command.Status}, wait)
			},
			ValidArgsFunction: e.completeFirst,
		},
		e.newDecision(command.Skip, "Make the blocked message of a key a dead letter", &wait),
		e.newDecision(command.Retry, "Handle the blocked message of a key again", &wait),
	)
	return group(c)
}

// newDecision returns a command for the process that has a blocked message.
func (e *env) newDecision(do, short string, wait *time.Duration) *cobra.Command {
	return &cobra.Command{
		Use:   do + " QUEUE KEY",
		Short: short,
		Long: short + `, and let those behind it follow. KEY is the key as "order status" shows it; '' stands for all
blocked messages without a key. With exit code 1 no such message was blocked.`,
		Example: "  wmretry order " + do + " orders customer-7",
		Args:    needs("QUEUE", "KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			return e.order(c.Context(), command.Request{Queue: args[0], Do: do, Key: args[1]}, *wait)
		},
		ValidArgsFunction: e.completeFirst,
	}
}

// orderAnswers is what the processes answer.
type orderAnswers struct {
	Queue     string
	Processes int `json:",omitempty"` // how many processes were asked; 0: not known
	Decided   int
	Answers   []command.Answer
}

func (e *env) order(ctx context.Context, r command.Request, wait time.Duration) error {
	if r.Queue == "" {
		return usage("QUEUE is empty: name the work queue")
	}
	all, err := e.askProcesses(ctx, r, wait)
	switch {
	case err != nil:
		return err
	case !slices.ContainsFunc(all.Answers, func(a command.Answer) bool { return len(a.Handlers) > 0 }):
		return fmt.Errorf("no process that has answered has a handler with Order.Partitions on the work queue %s",
			safe(r.Queue))
	case r.Do != command.Status && all.Decided == 0:
		return fmt.Errorf("no message of the key %s is blocked: `%s` lists the blocked ones", safe(strconv.Quote(r.Key)),
			e.advised("wmretry order status "+shellWord(r.Queue)))
	case e.json:
		return nil
	case r.Do == command.Status:
		_, err = fmt.Fprintln(e.stdout, strings.Join(e.orderLines(all), "\n"))
	case r.Do == command.Skip:
		_, err = fmt.Fprintf(e.stdout, "%s skipped: dead letters of %s\n", plural(all.Decided, "message is", "messages are"),
			safe(r.Queue))
	default:
		_, err = fmt.Fprintf(e.stdout, "%s handled again\n", plural(all.Decided, "message is", "messages are"))
	}
	return err
}

func waitFlag(c *cobra.Command, wait *time.Duration) {
	c.PersistentFlags().DurationVar(wait, "wait", 2*time.Second, "wait so long for the answers of the processes. With "+
		"the management API it ends with the last answer")
}

// askProcesses asks, prints the answers as JSON with --json, and warns of what is missing in them.
func (e *env) askProcesses(
	ctx context.Context, r command.Request, wait time.Duration,
) (all orderAnswers, err error) {
	if wait <= 0 {
		return all, usage("--wait is %v: it must be above 0", wait)
	}
	var asked command.Asked
	err = e.withRabbitMQ(ctx, func(store *deadletter.Store) (err error) {
		asked, err = command.AskerOf(store)(ctx, r, wait)
		return err
	})
	if errors.Is(err, command.ErrNoProcess) {
		err = fmt.Errorf("%w. If the apps have another prefix than %s, give it with --prefix", err, safe(e.prefix()))
	}
	if err != nil {
		return all, err
	}
	all = orderAnswers{Queue: r.Queue, Processes: asked.Processes, Answers: asked.Answers}
	for _, a := range all.Answers {
		all.Decided += a.Decided
	}
	if e.json {
		err = e.printJSON(all)
	}
	if missing := all.Processes - len(all.Answers); missing > 0 {
		_, _ = fmt.Fprintf(e.stderr, "warning: %s not answered: give them more time with --wait\n",
			plural(missing, "process has", "processes have"))
	}
	for _, a := range all.Answers {
		if a.Error != "" {
			_, _ = fmt.Fprintf(e.stderr, "warning: %s: %s\n", safe(processOf(a)), safe(a.Error))
		}
	}
	return all, err
}

func processOf(a command.Answer) string { return fmt.Sprintf("%s/%d", a.Host, a.PID) }

// An ownedPartition is what a process does with a partition.
type ownedPartition struct {
	command.Partition
	owner string
}

// isIdle reports whether another process may have the partition.
func (p ownedPartition) isIdle() bool {
	return p.Delivered == 0 && p.Waiting == 0 && len(p.Blocked) == 0
}

// keyWord returns a key as a word after the queue. One that a terminal cannot show is written as bash and zsh read it.
func keyWord(key string) string {
	word := shellWord(key)
	if word != shell.Word(key) {
		quoted := strconv.QuoteToASCII(key)
		word = "$'" + strings.ReplaceAll(quoted[1:len(quoted)-1], "'", `\'`) + "'"
	}
	if strings.HasPrefix(key, "-") {
		word = "-- " + word
	}
	return word
}

// orderLines returns the partitions and the blocked keys as tables.
func (e *env) orderLines(all orderAnswers) []string {
	byQueue, unlisted := map[string][]ownedPartition{}, 0
	var queues []string // in the order of their numbers
	for _, a := range all.Answers {
		unlisted += a.Unlisted
		for _, h := range a.Handlers {
			for _, p := range h.Partitions {
				if byQueue[p.Queue] == nil {
					queues = append(queues, p.Queue)
				}
				byQueue[p.Queue] = append(byQueue[p.Queue], ownedPartition{p, h.Name + " " + processOf(a)})
			}
		}
	}
	partitions, blocked := e.table("PARTITION", "PROCESS", "DELIVERED", "WAITING", "BEHIND", "OLDEST", "BLOCKED"),
		e.table("BLOCKED KEY", "SINCE", "WHY", "MESSAGE", "PROCESS")
	some := false
	for _, queue := range queues {
		owned := slices.DeleteFunc(slices.Clone(byQueue[queue]), ownedPartition.isIdle)
		if len(owned) == 0 {
			owned = []ownedPartition{{command.Partition{Queue: queue}, "no message yet"}}
		}
		for _, p := range owned {
			row := []any{safe(queue), safe(p.owner), thousands(int(p.Delivered)), thousands(p.Waiting),
				thousands(p.Behind), p.Oldest.Round(time.Second).String(), thousands(len(p.Blocked))}
			if len(p.Blocked) > 0 {
				for i := range row {
					row[i] = e.paint(text.FgRed, fmt.Sprint(row[i]))
				}
			}
			partitions.AppendRow(row)
			slices.SortFunc(p.Blocked, func(a, b command.Blocked) int { return a.Since.Compare(b.Since) })
			for _, b := range p.Blocked {
				some = true
				why := string(b.DeadReason) + ": " + b.Reason
				blocked.AppendRow([]any{keyWord(b.Key), e.time(b.Since), safe(why), safe(b.MessageUUID), safe(p.owner)})
			}
		}
	}
	lines := strings.Split(partitions.Render(), "\n")
	if !some {
		return lines
	}
	lines = append(append(lines, ""), strings.Split(blocked.Render(), "\n")...)
	if unlisted > 0 {
		lines = append(lines, plural(unlisted, "further message is", "further messages are")+" blocked")
	}
	return append(lines, "", "`"+e.advised("wmretry order retry "+shellWord(all.Queue)+" KEY")+
		"` handles a message again, and skip makes it a dead letter.")
}
