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

// answered is what processes have answered.
type answered struct {
	Processes int
	Faults    []string // what went wrong in single processes
	Known     bool     // it is known which keys are blocked, or limited
	Hidden    int      // rows that are not shown
}

// askAll asks the processes. That none has answered is no error.
func (p *Page) askAll(r *http.Request, request command.Request) (command.Asked, answered, error) {
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	asked, err := p.ask(ctx, request, answerWait)
	if errors.Is(err, command.ErrNoProcess) {
		err = nil
	}
	of := answered{Processes: len(asked.Answers)}
	if of.Processes > 0 {
		of.Faults = asked.Faults(".")
	}
	return asked, of, err
}

type orderView struct {
	answered
	Queue  string
	Status string // the command that has all
	Rows   []blockedRow
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
	if p.ask == nil || !slices.ContainsFunc(status.Queues,
		func(work letters.WorkQueue) bool { return work.Name == name && work.Partitions > 0 }) {
		if err != nil {
			return err
		}
		return failure{http.StatusNotFound, "The board has no such work queue with partitions.", nil}
	}
	request := command.Request{Queue: name, Do: command.Status}
	asked, of, err := p.askAll(r, request)
	if err != nil {
		return err
	}
	shown := orderView{answered: of, Queue: name, Status: request.Line(asked.Prefix) + " --json"}
	shown.add(asked)
	p.render(w, http.StatusOK, "order.html", "Blocked keys", shown)
	return nil
}

// add adds the blocked keys, the oldest first.
func (v *orderView) add(asked command.Asked) {
	for _, part := range command.PartitionsOf(asked.Answers) {
		for _, b := range part.Blocked {
			v.Rows = append(v.Rows, blockedRow{Blocked: b, Partition: part.Queue, Process: part.Owner})
		}
	}
	slices.SortStableFunc(v.Rows, func(a, b blockedRow) int { return a.Since.Compare(b.Since) })
	v.Rows, v.Hidden = first(maxBlocked, v.Rows)
	for _, a := range asked.Answers {
		v.Known = v.Known || len(a.Handlers) > 0
		v.Hidden += a.Unlisted
	}
	for i := range v.Rows {
		if row := &v.Rows[i]; isPlain(v.Queue) && isPlain(row.Key) {
			row.Retry = command.Request{Queue: v.Queue, Do: command.Retry, Key: row.Key}.Line(asked.Prefix)
			row.Skip = command.Request{Queue: v.Queue, Do: command.Skip, Key: row.Key}.Line(asked.Prefix)
		}
	}
}

// isPlain reports whether a browser shows and copies a text as it is. An answer has U+FFFD for bytes that are no UTF-8.
func isPlain(text string) bool {
	return len(text) <= maxReason && strings.IndexFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}) < 0
}

type keysView struct {
	answered
	Rows []command.Key
}

// keys shows the keys of handlers with Breaker.Key that are limited or had to wait, as their processes answer.
func (p *Page) keys(w http.ResponseWriter, r *http.Request) error {
	if p.ask == nil {
		return failure{http.StatusNotFound, "The page cannot ask processes for the keys of their handlers.", nil}
	}
	asked, of, err := p.askAll(r, command.Request{Do: command.Keys})
	if err != nil {
		return err
	}
	shown := keysView{answered: of}
	shown.Known = slices.ContainsFunc(asked.Answers, func(a command.Answer) bool { return a.Keyed > 0 })
	shown.Rows, shown.Hidden = first(maxBlocked, command.KeysOf(asked.Answers))
	p.render(w, http.StatusOK, "keys.html", "Keys", shown)
	return nil
}
