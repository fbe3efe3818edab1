package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// patience is the default of --wait.
const patience = 2 * time.Second

func newOrderCommand(e *env) *cobra.Command {
	wait := patience
	ask := func(do, arguments string) *cobra.Command {
		return e.command("order "+do+arguments, nil, func(ctx context.Context, args []string) error {
			return e.order(ctx, command.Request{Queue: args[0], Do: do, Key: strings.Join(args[1:], "")}, wait)
		})
	}
	c := e.group("order", ask(command.Status, " QUEUE"), ask(command.Skip, " QUEUE KEY"),
		ask(command.Retry, " QUEUE KEY"))
	variables{"wait": &wait}.addTo(c.PersistentFlags())
	return c
}

// orderAnswers is what the processes answer.
type orderAnswers struct {
	Queue     string           `json:"queue"`
	Processes int              `json:"processes,omitempty"` // how many processes were asked; 0: not known
	Decided   int              `json:"decided"`
	Answers   []command.Answer `json:"answers"`

	seen int // how many handlers have got a message of the key
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
			e.advised("order", "status", r.Queue))
	case e.json:
		return nil
	case r.Do == command.Status:
		_, err = fmt.Fprintln(e.stdout, e.orderText(all))
	case r.Do == command.Skip:
		_, err = fmt.Fprintf(e.stdout, "%s skipped: dead letters of %s\n", plural(all.Decided, "message is", "messages are"),
			safe(r.Queue))
	default:
		_, err = fmt.Fprintf(e.stdout, "%s handled again\n", plural(all.Decided, "message is", "messages are"))
	}
	return err
}

// askProcesses asks, prints the answers but keys as JSON with --json, and warns of what is missing in them.
func (e *env) askProcesses(ctx context.Context, r command.Request, wait time.Duration) (all orderAnswers, err error) {
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
		all.Decided, all.seen = all.Decided+a.Decided, all.seen+a.Seen
	}
	if e.json && r.Do != command.Keys {
		err = e.printJSON(all)
	}
	for _, fault := range asked.Faults(": give them more time with --wait") {
		_, _ = fmt.Fprintf(e.stderr, "warning: %s\n", safe(fault))
	}
	return all, err
}

// isIdle reports whether another process may have the partition.
func isIdle(p command.Owned) bool { return p.Delivered == 0 && p.Waiting == 0 && len(p.Blocked) == 0 }

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

// orderText returns the partitions and the blocked keys as tables.
func (e *env) orderText(all orderAnswers) string {
	byQueue, unlisted := map[string][]command.Owned{}, 0
	for _, a := range all.Answers {
		unlisted += a.Unlisted
	}
	var queues []string // in the order of their numbers
	for _, p := range command.PartitionsOf(all.Answers) {
		if byQueue[p.Queue] == nil {
			queues = append(queues, p.Queue)
		}
		byQueue[p.Queue] = append(byQueue[p.Queue], p)
	}
	partitions, blocked := e.table("PARTITION", "PROCESS", "DELIVERED", "WAITING", "BEHIND", "OLDEST", "BLOCKED"),
		e.table("BLOCKED KEY", "SINCE", "WHY", "MESSAGE", "PROCESS")
	for _, queue := range queues {
		owned := slices.DeleteFunc(slices.Clone(byQueue[queue]), isIdle)
		if len(owned) == 0 {
			owned = []command.Owned{{Partition: command.Partition{Queue: queue}, Owner: "no message yet"}}
		}
		for _, p := range owned {
			partitions.AppendRow(e.row(only(len(p.Blocked) > 0, text.FgRed), safe(queue), safe(p.Owner),
				thousands(int(p.Delivered)), thousands(p.Waiting), thousands(p.Behind),
				p.Oldest.Round(time.Second).String(), thousands(len(p.Blocked))))
			slices.SortFunc(p.Blocked, func(a, b command.Blocked) int { return a.Since.Compare(b.Since) })
			for _, b := range p.Blocked {
				why := string(b.DeadReason) + ": " + b.Reason
				blocked.AppendRow([]any{keyWord(b.Key), e.time(b.Since), safe(why), safe(b.MessageUUID), safe(p.Owner)})
			}
		}
	}
	return e.text("order", map[string]any{"Partitions": partitions.Render(), "Any": blocked.Length() > 0,
		"Blocked": blocked.Render(), "Unlisted": unlisted,
		"Retry": e.advised("order", "retry", all.Queue, "KEY")})
}

// keyFlags are the flags of the commands of keys.
type keyFlags struct {
	wait         time.Duration
	limit, queue string
}

func newKeyCommand(e *env) *cobra.Command {
	f := &keyFlags{wait: patience}
	list := e.command("key list", nil, func(ctx context.Context, _ []string) error { return e.listKeys(ctx, f) })
	lasts := variables{"for": &f.limit}
	pause := e.command("key pause KEY", lasts, func(ctx context.Context, args []string) error {
		return e.limitKey(ctx, f, args[0], 0)
	})
	limit := e.command("key limit KEY CALLS", lasts, func(ctx context.Context, args []string) error {
		calls, err := strconv.Atoi(args[1])
		if err != nil || calls < 1 {
			return usage("CALLS is %s: it must be a number of 1 or more", safe(strconv.Quote(args[1])))
		}
		return e.limitKey(ctx, f, args[0], calls)
	})
	for _, own := range []*cobra.Command{pause, limit} {
		own.Use += " --for DURATION"
	}
	resume := e.command("key resume KEY", nil, func(ctx context.Context, args []string) error {
		return e.decide(ctx, f, command.Request{Key: args[0], Calls: command.NoLimit, Lasts: command.LongestLimit},
			"is resumed", "no process has a pause or a limit of yours for the key "+safe(strconv.Quote(args[0])))
	})
	c := e.group("key", list, pause, limit, resume)
	variables{"wait": &f.wait, "queue": &f.queue}.addTo(c.PersistentFlags())
	return c
}

func (e *env) limitKey(ctx context.Context, f *keyFlags, key string, calls int) error {
	var lasts time.Duration
	if f.limit != "" {
		var err error
		if lasts, err = age("--for")(f.limit); err != nil {
			return err
		}
	}
	if lasts <= 0 || lasts > command.LongestLimit {
		return usage("--for is %q: it must be above 0 and at most 30d, such as 1h", f.limit)
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
	switch {
	case all.Decided == 0:
		return errors.New(none)
	case all.seen == 0 && r.Calls >= 0:
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
	if err == nil && !slices.ContainsFunc(all.Answers, func(a command.Answer) bool { return a.Keyed > 0 }) {
		err = errors.New("no process that has answered has a handler with Breaker.Key" +
			only(f.queue != "", " on the work queue "+safe(f.queue)))
	}
	return all, err
}

// A keyLine is a key of a handler and process, as JSON.
type keyLine struct {
	Key     string    `json:"key"`
	State   string    `json:"state"` // empty: it has all calls
	Until   time.Time `json:"until,omitzero"`
	Calls   int       `json:"calls"` // at the same time, where it has a state
	Waited  uint64    `json:"waited"`
	Queue   string    `json:"queue"`
	Handler string    `json:"handler"`
	Process string    `json:"process"`
}

func (e *env) listKeys(ctx context.Context, f *keyFlags) error {
	all, err := e.askKeys(ctx, f, command.Request{Do: command.Keys})
	if err != nil {
		return err
	}
	lines := each.Of(command.KeysOf(all.Answers), func(k command.Key) keyLine {
		return keyLine{k.Key, k.Paused, k.Until, k.Limit, k.Parked, k.Queue, k.Handler, k.Process}
	})
	return e.output(lines, func() string {
		return cmp.Or(e.keyTable(all.Answers, false), "no key is limited, and none had to wait") + "\n"
	})
}

// keyTable returns a row for each key of a handler and process, or only those that are limited. Empty: there is none.
func (e *env) keyTable(answers []command.Answer, limited bool) string {
	rows := command.KeysOf(answers)
	if limited {
		rows = slices.DeleteFunc(rows, func(k command.Key) bool { return k.Paused == "" })
	}
	if len(rows) == 0 {
		return ""
	}
	table := e.table("KEY", "STATE", "UNTIL", "CALLS", "WAITED", "HANDLER", "PROCESS")
	for _, r := range rows {
		calls := cmp.Or(only(r.Paused != "", thousands(r.Limit)), "all")
		table.AppendRow([]any{keyWord(r.Key), r.Paused, only(!r.Until.IsZero(), e.time(r.Until)), calls,
			thousands(int(r.Parked)), safe(r.Handler), safe(r.Process)})
	}
	return table.Render()
}
