package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = time.Second

func newDeadCommand(e *env) *cobra.Command {
	c := e.group("dead", newListCommand(e), newShowCommand(e), newRedriveCommand(e), newDiscardCommand(e),
		newExportCommand(e), newImportCommand(e))
	c.SuggestFor = []string{"orphans"}
	variables{"as-is": &e.flags.asIs}.addTo(c.PersistentFlags())
	return c
}

// of is the name of the argument of the commands on letters.
func (e *env) of() string {
	if e.kind.Groups {
		return "TOPIC"
	}
	return "QUEUE"
}

// place is the queue or topic of a Store in which the letters are.
type place struct {
	*backend.Store
	queue string
}

// on returns what a command does on letters. Its flags are read and validated before the backend is reached.
func (e *env) on(
	flags variables, validate func() error, use func(ctx context.Context, at place, args []string) error,
) func(ctx context.Context, args []string) error {
	return func(ctx context.Context, args []string) error {
		if err := cmp.Or(flags.read(), ofFlags(validate())); err != nil {
			return err
		}
		return e.withStore(ctx, func(store *backend.Store) error {
			queue, err := e.queue(ctx, store, args[0])
			if err != nil {
				return err
			}
			at := place{store, queue}
			if given, is := flags["id"].(*reader); is {
				if err := e.noteAbsent(ctx, at, given.texts); err != nil {
					return err
				}
			}
			return use(ctx, at, args)
		})
	}
}

// noteAbsent warns of ids that no letter has, where another one has a letter. Where none has one, nothing is selected.
// It looks at the letters once more: with any limit, that can be one look too many.
func (e *env) noteAbsent(ctx context.Context, at place, given []string) error {
	if len(given) < 2 || e.flags.anyLimit {
		return nil
	}
	var filter letters.Filter
	for _, id := range given {
		filter.IDs = append(filter.IDs, ids(id)...)
	}
	absent := slices.Clone(given)
	for letter, err := range at.Browse(ctx, at.queue, filter) { // to its end, for the order of the letters
		if err != nil {
			return e.explain(err)
		}
		absent = slices.DeleteFunc(absent, func(id string) bool { return slices.Contains(ids(id), letter.ID) })
	}
	if n := len(absent); n > 0 && n < len(given) {
		_, _ = fmt.Fprintf(e.stderr, "wmretry: warning: no letter in %s has the id %s\n", safe(at.queue),
			safe(strings.Join(absent, " or ")))
	}
	return nil
}

// queue returns the queue or topic in which the letters are.
func (e *env) queue(ctx context.Context, store *backend.Store, name string) (string, error) {
	if store.Rabbit == nil && !e.flags.asIs {
		topic, err := store.Topic(ctx, name)
		return topic, e.explain(err)
	}
	return e.onRabbitMQ(name), nil
}

func (e *env) onRabbitMQ(name string) string {
	if e.flags.asIs || e.ofLetters(name) {
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
	command := []string{"dead", "list"}
	work, dead := strings.CutSuffix(queue, deadletter.QueueOf(""))
	switch {
	case e.kind.Groups:
		if !strings.HasPrefix(queue, e.prefix()+".dead.") {
			command = append(command, "--as-is")
		}
	case dead && work != "" && !e.ofLetters(work):
		queue = work
	case !e.ofLetters(queue):
		command = append(command, "--as-is")
	}
	return e.advised(append(command, queue)...)
}

// completeFirst completes the first argument.
func (e *env) completeFirst(c *cobra.Command, given []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return e.completeQueue(c, given, word)
}

// completeQueue lists the work queues or topics that have dead letters, or all queues with --as-is. It lists none where
// the backend does not answer.
func (e *env) completeQueue(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	var completed []string
	_ = e.withStore(ctx, func(store *backend.Store) error {
		names, err := namesOf(ctx, store)
		for _, name := range names {
			if !completable(name) {
				continue
			}
			work, dead := strings.CutSuffix(name, deadletter.QueueOf(""))
			switch {
			case store.Rabbit == nil, e.flags.asIs:
				completed = append(completed, name)
			case dead && work != "":
				completed = append(completed, work)
			}
		}
		return err
	})
	return completed, cobra.ShellCompDirectiveNoFileComp
}

// completable reports whether the scripts of the shells take a name of the broker for a name only. They print what
// follows the prefix of cobra's active help as it is, and read a line feed and a tab as the end of a name.
func completable(name string) bool {
	return safe(name) == name && !strings.HasPrefix(name, "_activeHelp_")
}

// namesOf lists the queues of a virtual host, or the topics of groups.
func namesOf(ctx context.Context, store *backend.Store) ([]string, error) {
	if store.Rabbit != nil {
		return store.Rabbit.Queues(ctx)
	}
	keys, err := store.Looker.Keys(ctx)
	for i, key := range keys {
		if _, topic, found := strings.Cut(key, "."); found {
			keys[i] = topic
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), err
}

// explain adds what to do to the error of a call on a queue or topic.
func (e *env) explain(err error) error {
	names := e.advised(strings.Fields("status" + only(e.kind == backend.RabbitMQ, " --all"))...)
	switch {
	case errors.Is(err, letters.ErrNoTarget) && strings.Contains(err.Error(), "Redrive.To"):
		return fmt.Errorf("%w (here: --to %s; `%s` lists the names)", err, e.of(), names)
	case errors.Is(err, letters.ErrNoQueue):
		return fmt.Errorf("%w; `%s` lists the names. Where the name itself has the letters, use --as-is", err, names)
	}
	return err
}

// at returns where a queue is: an operator can have terminals for several backends.
func (e *env) at(queue string) string { return queue + only(e.where != "", " at "+e.where) }

// nothing is the error where no letter was selected.
func (e *env) nothing(queue string, filter letters.Filter) error {
	if selects(filter) {
		return exit(codeNothing, fmt.Errorf("no letter in %s matches; `%s` shows all of them", safe(queue),
			e.listCommand(queue)))
	}
	return nil
}
