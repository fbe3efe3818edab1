package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = time.Second

// letterCommand is what the commands on letters share.
type letterCommand struct {
	*env
	asIs bool // --as-is
}

func newDeadCommand(e *env) *cobra.Command {
	l := &letterCommand{env: e}
	c := &cobra.Command{
		Use:   "dead",
		Short: "Dead letters and orphans: list, show, redrive, discard, export, import",
		Long: `Commands on letters. QUEUE is the work queue: "orders" reads the dead letters in orders.dead. The name
orders.dead is taken as it is, and so is that of the orphans, retry.orphans: messages whose work queue was gone when
their delay was over. With --prefix shop it is shop.orphans. With --as-is every name is taken as it is, for example
that of Watermill's poison queue.`,
		SuggestFor: []string{"list", "show", "redrive", "discard", "export", "import", "orphans"},
	}
	c.PersistentFlags().BoolVar(&l.asIs, "as-is", false, "QUEUE itself has the letters, whatever its name")
	c.AddCommand(newListCommand(l), newShowCommand(l), newRedriveCommand(l), newDiscardCommand(l), newExportCommand(l),
		newImportCommand(l))
	return group(c)
}

// needs returns the check of a command whose arguments have these names.
func needs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) == len(names) {
			return nil
		}
		return fmt.Errorf("%s needs %s, and has %s", c.CommandPath(), strings.Join(names, " and "),
			plural(len(given), "argument", "arguments"))
	}
}

// queue returns the queue in which the letters are.
func (l *letterCommand) queue(name string) string {
	if l.asIs || l.ofLetters(name) {
		return name
	}
	return deadletter.QueueOf(name)
}

// ofLetters reports whether the queue with this name has letters, and is not a work queue.
func (e *env) ofLetters(name string) bool {
	return strings.HasSuffix(name, deadletter.QueueOf("")) || name == e.prefix()+".orphans"
}

// listCommand is the command that lists the letters in a queue.
func (e *env) listCommand(queue string) string {
	command := "wmretry dead list "
	work, dead := strings.CutSuffix(queue, deadletter.QueueOf(""))
	switch {
	case dead && work != "" && !e.ofLetters(work):
		queue = work
	case !e.ofLetters(queue):
		command += "--as-is "
	}
	return e.advised(command + shellWord(queue))
}

// completeFirst completes the first argument.
func (e *env) completeFirst(c *cobra.Command, given []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return e.completeQueue(c, given, word)
}

// completeQueue lists the work queues that have a dead-letter queue, or all queues with --as-is. It lists none where
// the broker does not answer.
func (e *env) completeQueue(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var completed []string
	names, _ := e.queueNames()
	asIs := c.Flag("as-is")
	for _, name := range names {
		if !completable(name) {
			continue
		}
		work, dead := strings.CutSuffix(name, deadletter.QueueOf(""))
		switch {
		case asIs != nil && asIs.Changed:
			completed = append(completed, name)
		case dead && work != "":
			completed = append(completed, work)
		}
	}
	return completed, cobra.ShellCompDirectiveNoFileComp
}

// completable reports whether the scripts of the shells take a name of the broker for a name only. They print what
// follows the prefix of cobra's active help as it is, and read a line feed and a tab as the end of a name.
func completable(name string) bool {
	return safe(name) == name && !strings.HasPrefix(name, "_activeHelp_")
}

// queueNames lists the queues of the virtual host, sorted.
func (e *env) queueNames() ([]string, error) {
	config, err := e.config()
	if err != nil {
		return nil, err
	}
	store, err := deadletter.Open(config, e.logger())
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	return store.Queues(ctx)
}

// browse goes through the letters of a queue.
func (l *letterCommand) browse(
	ctx context.Context, queue string, filter letters.Filter,
) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		err := l.withStore(ctx, func(store *deadletter.Store) error {
			for letter, err := range store.Browse(ctx, queue, filter) {
				if err != nil {
					return explain(err)
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

// explain adds what to do to the error of a call on a queue.
func explain(err error) error {
	switch {
	case errors.Is(err, letters.ErrNoTarget) && strings.Contains(err.Error(), "Redrive.To"):
		return fmt.Errorf("%w (here: --to QUEUE)", err)
	case errors.Is(err, letters.ErrNoQueue):
		return fmt.Errorf("%w; `wmretry status --all` lists the queues. Where QUEUE itself has the letters, use --as-is",
			err)
	}
	return err
}

// nothing is the error where no letter was selected.
func (e *env) nothing(queue string, selected *filterFlags) error {
	if selected.any() {
		return exit(codeNothing, fmt.Errorf("no letter in %s matches; `%s` shows all of them", safe(queue),
			e.listCommand(queue)))
	}
	return nil
}
