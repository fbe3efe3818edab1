package page

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// answerWait is how long a view waits for the answers of the processes.
	answerWait = 2 * time.Second
	// maxBlocked is how many blocked keys are shown.
	maxBlocked = 200
)

// partitions returns how many partitions a work queue has, or 0 where the page cannot show their blocked keys.
func (p *Page) partitions(work letters.WorkQueue) int {
	if p.ask == nil {
		return 0
	}
	return work.Partitions
}

type orderView struct {
	Queue    string
	Status   string   // the command that has all
	None     string   // why it is not known which keys are blocked; empty: it is
	Faults   []string // what went wrong in single processes
	Answered int
	Rows     []blockedRow
	Hidden   int // blocked messages that are not shown
}

type blockedRow struct {
	command.Blocked
	Partition, Process string
	Retry, Skip        string // commands for a shell; empty where a browser cannot show the key as it is
}

// order shows the blocked keys of a work queue, as the processes that have them answer.
func (p *Page) order(w http.ResponseWriter, r *http.Request) error {
	status, err := p.current(r.Context())
	name := r.URL.Query().Get("queue")
	if !slices.ContainsFunc(status.Queues, func(work letters.WorkQueue) bool {
		return work.Name == name && p.partitions(work) > 0
	}) {
		if err != nil {
			return err
		}
		return failure{http.StatusNotFound, "The board has no such work queue with partitions.", nil}
	}
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	asked, err := p.ask(ctx, command.Request{Queue: name, Do: command.Status}, answerWait)
	if err != nil && !errors.Is(err, command.ErrNoProcess) {
		return err
	}
	p.render(w, http.StatusOK, "order.html", "Blocked keys", newOrder(name, asked))
	return nil
}

func newOrder(queue string, asked command.Asked) orderView {
	all := command.Request{Queue: queue, Do: command.Status}
	shown := orderView{Queue: queue, Answered: len(asked.Answers), Faults: faultsOf(asked),
		Status: all.Line(asked.Prefix) + " --json"}
	known := false
	for _, a := range asked.Answers {
		shown.Hidden += a.Unlisted
		for _, h := range a.Handlers {
			known = true
			for _, part := range h.Partitions {
				for _, b := range part.Blocked {
					shown.Rows = append(shown.Rows, blockedRow{Blocked: b, Partition: part.Queue,
						Process: h.Name + " " + a.Process()})
				}
			}
		}
	}
	switch {
	case len(asked.Answers) == 0:
		shown.None = "No process with a handler that has Order.Partitions has answered."
	case !known:
		shown.None = "No process that has answered has a handler with Order.Partitions on this work queue."
	}
	slices.SortStableFunc(shown.Rows, func(a, b blockedRow) int { return a.Since.Compare(b.Since) })
	if more := len(shown.Rows) - maxBlocked; more > 0 {
		shown.Rows, shown.Hidden = shown.Rows[:maxBlocked], shown.Hidden+more
	}
	for i := range shown.Rows {
		row := &shown.Rows[i]
		if isPlain(queue) && isPlain(row.Key) {
			row.Retry = command.Request{Queue: queue, Do: command.Retry, Key: row.Key}.Line(asked.Prefix)
			row.Skip = command.Request{Queue: queue, Do: command.Skip, Key: row.Key}.Line(asked.Prefix)
		}
	}
	return shown
}

// faultsOf returns what went wrong in single processes.
func faultsOf(asked command.Asked) (all []string) {
	for _, a := range asked.Answers {
		if a.Error != "" {
			all = append(all, a.Process()+": "+a.Error)
		}
	}
	if missing := asked.Processes - len(asked.Answers); missing > 0 && len(asked.Answers) > 0 {
		all = append(all, plural(missing, "process has", "processes have")+" not answered.")
	}
	return all
}

// isPlain reports whether a browser shows and copies a text as it is. An answer has U+FFFD for bytes that are no UTF-8.
func isPlain(text string) bool {
	return len(text) <= maxReason && strings.IndexFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}) < 0
}

type keysView struct {
	None     string   // why it is not known which keys are limited; empty: it is
	Faults   []string // what went wrong in single processes
	Answered int
	Rows     []command.Key
	Hidden   int // keys that are not shown
}

// keys shows the keys of handlers with Breaker.Key that are limited or had to wait, as their processes answer.
func (p *Page) keys(w http.ResponseWriter, r *http.Request) error {
	if p.ask == nil {
		return failure{http.StatusNotFound, "The page cannot ask processes for the keys of their handlers.", nil}
	}
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	asked, err := p.ask(ctx, command.Request{Do: command.Keys}, answerWait)
	if err != nil && !errors.Is(err, command.ErrNoProcess) {
		return err
	}
	p.render(w, http.StatusOK, "keys.html", "Keys", newKeys(asked))
	return nil
}

func newKeys(asked command.Asked) keysView {
	shown := keysView{Answered: len(asked.Answers), Faults: faultsOf(asked), Rows: command.KeysOf(asked.Answers)}
	if !slices.ContainsFunc(asked.Answers, func(a command.Answer) bool { return a.Keyed > 0 }) {
		shown.None = "No process with a handler that has Breaker.Key has answered."
	}
	shown.Hidden = max(len(shown.Rows)-maxBlocked, 0)
	shown.Rows = shown.Rows[:len(shown.Rows)-shown.Hidden]
	return shown
}
