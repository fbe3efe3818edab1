package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = time.Second

// letterCommand is what the commands on letters share: env, and whether the letters are orphans or dead letters.
type letterCommand struct {
	*env
	orphans bool
	asIs    bool // --as-is
}

func newDeadCommand(e *env) *cobra.Command {
	return newLetterCommand(&letterCommand{env: e}, &cobra.Command{
		Use:   "dead",
		Short: "Dead letters of a work queue: list, show, redrive, discard, export, import, edit",
		Long: `Commands on the dead letters of a work queue. QUEUE is the work queue: "orders" reads the letters in
orders.dead. The name orders.dead is taken as it is. With --as-is every name is, for example that of Watermill's
poison queue.`,
	})
}

func newOrphansCommand(e *env) *cobra.Command {
	return newLetterCommand(&letterCommand{env: e, orphans: true}, &cobra.Command{
		Use:   "orphans",
		Short: "Messages whose work queue was gone when their delay was over: the same commands",
		Long: `Commands on the orphans: messages whose work queue was gone when their delay was over. They are in the
queue <prefix>.orphans (retry.orphans, or what --prefix names). A redrive sends each one to the work queue that it
waited for: that queue must be there again. An orphan keeps its failure record: its failures are counted on.`,
	})
}

func newLetterCommand(l *letterCommand, c *cobra.Command) *cobra.Command {
	if !l.orphans {
		c.PersistentFlags().BoolVar(&l.asIs, "as-is", false, "QUEUE itself has the letters, whatever its name")
	}
	c.AddCommand(newListCommand(l), newShowCommand(l), newRedriveCommand(l), newDiscardCommand(l),
		newExportCommand(l), newImportCommand(l), newEditCommand(l))
	return group(c)
}

// command sets the parts that depend on where the letters are. The use and the examples are those of dead; those of
// orphans have no QUEUE. args are the names of the arguments after QUEUE.
func (l *letterCommand) command(c *cobra.Command, args ...string) *cobra.Command {
	names := args
	if !l.orphans {
		names = append([]string{"QUEUE"}, args...)
	}
	c.Use = strings.TrimSpace(c.Use + " " + strings.Join(names, " "))
	c.Args = func(c *cobra.Command, given []string) error {
		switch {
		case len(given) < len(names):
			text := fmt.Sprintf("%s needs %s", c.CommandPath(), strings.Join(names[len(given):], " and "))
			if names[len(given)] == "QUEUE" {
				text += ": the name of a work queue, such as orders"
			}
			return errors.New(text)
		case len(given) > len(names):
			return fmt.Errorf("%s does not take %q: its arguments are %s", c.CommandPath(), given[len(names)],
				strings.Join(append(names, "flags"), " and "))
		}
		return nil
	}
	if l.orphans {
		c.Example = strings.NewReplacer("wmretry dead ", "wmretry orphans ", " orders.dead", "", " orders",
			"").Replace(c.Example)
	} else {
		c.ValidArgsFunction = l.completeFirst
	}
	return c
}

// listCommand is the command that lists the letters.
func (l *letterCommand) listCommand() string {
	if l.orphans {
		return "wmretry orphans list"
	}
	return "wmretry dead list"
}

// queue returns the queue in which the letters are, and the arguments after its name.
func (l *letterCommand) queue(args []string) (string, []string) {
	if l.orphans {
		return l.prefix() + ".orphans", args
	}
	return l.queueOf(args[0]), args[1:]
}

func (l *letterCommand) queueOf(name string) string {
	if l.asIs || l.isLetters(name) {
		return name
	}
	return deadletter.QueueOf(name)
}

// isLetters reports whether a name is that of a queue of letters.
func (l *letterCommand) isLetters(name string) bool {
	return strings.HasSuffix(name, deadletter.QueueOf("")) || name == l.prefix()+".orphans"
}

// completeFirst completes the first argument.
func (l *letterCommand) completeFirst(
	c *cobra.Command, given []string, word string,
) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return l.completeQueue(c, given, word)
}

// completeQueue lists the work queues that have a dead-letter queue, or all queues with --as-is.
func (l *letterCommand) completeQueue(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names, _ := l.queueNames(completionTimeout) // none where the broker does not answer
	if !l.asIs {
		names = workQueues(names)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// workQueues returns the work queues of the dead-letter queues among the names.
func workQueues(names []string) []string {
	var works []string
	for _, name := range names {
		if work, dead := strings.CutSuffix(name, deadletter.QueueOf("")); dead && work != "" {
			works = append(works, work)
		}
	}
	return works
}

// browse goes through the letters of a queue.
func (l *letterCommand) browse(
	ctx context.Context, queue string, filter letters.Filter,
) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		err := l.withStore(ctx, func(store *deadletter.Store) error {
			for letter, err := range store.Browse(ctx, queue, filter) {
				if err != nil {
					return l.failed(ctx, queue, err)
				}
				if !yield(letter, nil) {
					break
				}
			}
			return nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// failed adds what to do to an error of a call on a queue.
func (l *letterCommand) failed(ctx context.Context, queue string, err error) error {
	if errors.Is(err, letters.ErrNoTarget) && strings.Contains(err.Error(), "Redrive.To") {
		return fmt.Errorf("%w (here: --to QUEUE)", err)
	}
	if !errors.Is(err, letters.ErrNoQueue) || ctx.Err() != nil {
		return err
	}
	if l.orphans {
		return fmt.Errorf("%w: there are no orphans with the prefix %s; --prefix names another one", err,
			safe(l.prefix()))
	}
	names, apiErr := l.queueNames(managementTimeout)
	if apiErr != nil {
		return fmt.Errorf("%w; the queues cannot be listed here: %s", err, safe(apiErr.Error()))
	}
	if slices.Contains(names, strings.TrimSuffix(queue, deadletter.QueueOf(""))) && !l.asIs {
		return fmt.Errorf("%w, but %s does: where that queue itself has the letters, use --as-is", err,
			safe(strings.TrimSuffix(queue, deadletter.QueueOf(""))))
	}
	works := workQueues(names)
	if len(works) == 0 {
		return fmt.Errorf("%w: no queue of this virtual host has a dead-letter queue; --as-is takes the name of "+
			"any queue", err)
	}
	return fmt.Errorf("%w; work queues with a dead-letter queue are %s", err, someOf(works))
}

// someOf lists the first names.
func someOf(names []string) string {
	const most = 20
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	return safe(strings.Join(names, ", ")) + more
}

// nothing is the error where no letter was selected.
func (l *letterCommand) nothing(queue string, selected *filterFlags) error {
	if selected.any() {
		return exit(codeNothing, fmt.Errorf("no letter in %s matches; `%s` without filters shows all of them",
			safe(queue), l.listCommand()))
	}
	return nil
}

// noID is the error where no letter has the id.
func (l *letterCommand) noID(queue, id string) error {
	return exit(codeNothing, fmt.Errorf("no letter in %s has the id %s; `%s` prints the ids", safe(queue), safe(id),
		l.listCommand()))
}
