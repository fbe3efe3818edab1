package page

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/retry"
)

type keysView struct {
	None     string   // why it is not known which keys are limited; empty: it is
	Faults   []string // what went wrong in single processes
	Answered int
	Rows     []keyRow
	Hidden   int // keys that are not shown
}

type keyRow struct {
	retry.KeyHealth
	Queue, Process string
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
	shown := keysView{Answered: len(asked.Answers), Faults: faultsOf(asked),
		None: "No process with a handler that has Breaker.Key has answered."}
	for _, a := range asked.Answers {
		for _, h := range a.Keyed {
			shown.None = ""
			for _, key := range h.Keys {
				key.Key, key.Paused = cut(maxReason, key.Key), cut(maxReason, key.Paused)
				shown.Rows = append(shown.Rows, keyRow{key, cut(maxReason, h.Queue), cut(maxReason, h.Name) + " " + processOf(a)})
			}
		}
	}
	slices.SortStableFunc(shown.Rows, func(a, b keyRow) int {
		if (a.Paused == "") != (b.Paused == "") {
			return cmp.Compare(b.Paused, a.Paused) // those that are limited first
		}
		return cmp.Or(cmp.Compare(b.Parked, a.Parked), cmp.Compare(a.Key, b.Key))
	})
	shown.Hidden = max(len(shown.Rows)-maxBlocked, 0)
	shown.Rows = shown.Rows[:len(shown.Rows)-shown.Hidden]
	return shown
}
