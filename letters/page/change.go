package page

import (
	"context"
	"errors"
	"net/http"
	"path"
	"sync"

	"github.com/tieredretry/watermill-retry/letters"
)

// verbs are those of the addresses.
var verbs = map[string]string{"redrive": verbRedrive, "discard": verbDiscard}

// A redrive of the page is a careful one: the command has options.
const (
	carefulRate      = 50
	carefulCanary    = 10
	carefulMaxRedead = 0.05
)

// change is the POST request of a list with picked letters, and of the confirmation. It never takes a selection without
// letters for all of them. It counts the letters, shows their number and asks: what then runs has this number as its
// limit.
func (p *Page) change(w http.ResponseWriter, r *http.Request) error {
	verb := verbs[path.Base(r.URL.Path)]
	if r.PostForm.Get("step") == "start" {
		if verb == verbDiscard && r.PostForm.Get("sure") == "" {
			return failure{http.StatusUnprocessableEntity, "Discarded letters cannot be brought back. Go back, and " +
				"select the box that confirms it.", nil}
		}
		return p.start(w, r, verb)
	}
	s, err := p.selected(r)
	if err == nil && s.empty() {
		err = failure{http.StatusBadRequest, "No letter is selected. Go back, and select at least one.", nil}
	}
	if err != nil {
		return err
	}
	made := plan{selection: s, Verb: verb, Redrive: letters.Redrive{
		Filter: s.filter(), By: p.config.By(r), Rate: carefulRate, MaxRedead: carefulMaxRedead,
	}}
	if n := len(s.IDs); n == 0 || n > carefulCanary {
		made.Redrive.Canary = carefulCanary
	}
	if err := p.count(r.Context(), &made); err != nil {
		return err
	}
	if made.Count == 0 && !made.AtLeast {
		return failure{http.StatusNotFound, "No letter of the queue is selected. They may have been redriven or " +
			"discarded meanwhile.", nil}
	}
	p.jobs.prepare(&made)
	p.render(w, http.StatusOK, "confirm.html", verb, made)
	return nil
}

// run runs the redrive or discard of a plan for at most so many letters, or only counts them.
func (p *Page) run(
	ctx context.Context, made plan, limit int, dry bool, progress func(letters.Progress),
) (letters.Summary, error) {
	options := made.Redrive
	if made.Verb == verbDiscard {
		return p.config.Store.Discard(ctx, made.Queue,
			letters.Discard{Filter: options.Filter, Limit: limit, DryRun: dry, Progress: progress})
	}
	if dry {
		options = letters.Redrive{Filter: options.Filter, DryRun: true}
	}
	options.Limit, options.Progress = limit, progress
	return p.config.Store.Redrive(ctx, made.Queue, options)
}

// count sets the number of letters of a plan, with a run that changes nothing.
func (p *Page) count(ctx context.Context, made *plan) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	var summary letters.Summary
	done, err := p.turns.take(ctx, made.Queue)
	if err == nil {
		defer done()
		summary, err = p.run(ctx, *made, 0, true, func(letters.Progress) {})
	}
	late, some := errors.Is(err, context.DeadlineExceeded), errors.Is(err, letters.ErrNoTarget) && summary.Done > 0
	if err != nil && !late && !some { // letters whose work queue is gone stay, the others can be sent
		return err
	}
	made.Count, made.AtLeast = summary.Done, late
	return nil
}

// inTurn runs a plan when no view looks at the queue, so that it counts all letters. Then views may look again: what
// they take comes back.
func (p *Page) inTurn(ctx context.Context, made plan, progress func(letters.Progress)) (letters.Summary, error) {
	done, err := p.turns.take(ctx, made.Queue)
	if err != nil {
		return letters.Summary{}, err
	}
	defer done()
	limit := made.Count
	if made.AtLeast {
		limit = 0
	}
	return p.run(ctx, made, limit, false, func(now letters.Progress) {
		if now.Total > 0 || now.Phase == letters.Waiting {
			done()
		}
		progress(now)
	})
}

func (p *Page) start(w http.ResponseWriter, r *http.Request, verb string) error {
	id := r.PostForm.Get("run")
	if err := p.jobs.start(verb, id, p.inTurn); err != nil {
		return err
	}
	return see(w, "job?id="+id)
}

// job shows a redrive or discard that runs, or its summary.
func (p *Page) job(w http.ResponseWriter, r *http.Request) error {
	for _, found := range p.jobs.views() {
		if found.ID == r.URL.Query().Get("id") {
			p.renderLive(w, r, "job", found.Verb, found)
			return nil
		}
	}
	return failure{http.StatusNotFound, "This page has no such redrive or discard. It keeps the last 20 until the " +
		"process ends.", nil}
}

func (p *Page) stop(w http.ResponseWriter, r *http.Request) error {
	id := r.PostForm.Get("run")
	if !p.jobs.stop(id) {
		return failure{http.StatusNotFound, "There is no such redrive or discard.", nil}
	}
	return see(w, "job?id="+id)
}

// see makes the browser show another page. The address stays relative, which http.Redirect would not keep.
func see(w http.ResponseWriter, address string) error {
	w.Header().Set("Location", address)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// turns lets one call at a time look at a queue. A look holds the letters that it has taken: another one would not
// see them, and a redrive that begins meanwhile would leave them out.
type turns struct{ queues sync.Map } // a channel with one place for each queue

// take waits for the turn of a call on a queue. The call ends it with done, which may be called several times.
func (t *turns) take(ctx context.Context, queue string) (done func(), err error) {
	of, _ := t.queues.LoadOrStore(queue, make(chan struct{}, 1))
	turn := of.(chan struct{})
	select {
	case turn <- struct{}{}:
		return sync.OnceFunc(func() { <-turn }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
