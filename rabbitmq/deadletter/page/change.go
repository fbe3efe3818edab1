package page

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

// These are the values of a redrive's form when it is opened.
const (
	usualRate      = "50"
	usualCanary    = 10
	usualMaxRedead = "5"
)

// redriveOptions are the fields of the form, as they were written.
type redriveOptions struct {
	Rate, Canary, CanaryWait, MaxRedead, Limit, To, Note string
}

type redriveView struct {
	selection
	Options redriveOptions
	Faults  []string
}

// redriveForm shows the options of a redrive.
func (p *Page) redriveForm(w http.ResponseWriter, r *http.Request) error {
	s, err := p.chosen(r)
	if err != nil {
		return err
	}
	options := redriveOptions{Rate: usualRate, Canary: strconv.Itoa(usualCanary), MaxRedead: usualMaxRedead}
	if query := r.URL.Query(); query.Has("rate") { // back from the confirmation
		options = readOptions(query)
	} else if n := len(s.IDs); n > 0 && n <= usualCanary {
		options.Canary = "0"
	}
	p.render(w, http.StatusOK, "redrive.html", "Redrive", redriveView{selection: s, Options: options})
	return nil
}

// chosen reads the selection of a change. It never takes a selection without letters for all of them.
func (p *Page) chosen(r *http.Request) (selection, error) {
	s, err := p.selected(r)
	if err == nil && s.empty() {
		err = failure{http.StatusBadRequest, "No letter is selected. Go back, and select at least one.", nil}
	}
	return s, err
}

// redrive is the POST request of the three steps: a list with picked letters shows the form, the form shows the
// confirmation, and the confirmation starts the redrive.
func (p *Page) redrive(w http.ResponseWriter, r *http.Request) error {
	switch r.PostForm.Get("step") {
	case "start":
		return p.start(w, r, verbRedrive)
	case "check":
	default:
		return p.redriveForm(w, r)
	}
	s, err := p.chosen(r)
	if err != nil {
		return err
	}
	shown := redriveView{selection: s, Options: readOptions(r.PostForm)}
	options, faults := shown.Options.read()
	if len(faults) > 0 {
		shown.Faults = faults
		p.render(w, http.StatusUnprocessableEntity, "redrive.html", "Redrive", shown)
		return nil
	}
	options.Filter, options.By = s.filter(), p.config.By(r)
	made := plan{selection: s, Verb: verbRedrive, Redrive: options, By: options.By, Form: shown.Options.query()}
	return p.confirm(w, r, made, options.Limit,
		func(ctx context.Context, limit int, dry bool, progress func(letters.Progress)) (letters.Summary, error) {
			options := options
			options.Limit, options.Progress = limit, progress
			if dry {
				options.DryRun, options.Canary, options.CanaryWait, options.MaxRedead, options.Rate = true, 0, 0, 0, 0
			}
			return p.config.Store.Redrive(ctx, s.Queue, options)
		})
}

func readOptions(values url.Values) redriveOptions {
	return redriveOptions{
		Rate: values.Get("rate"), Canary: values.Get("canary"), CanaryWait: values.Get("canary_wait"),
		MaxRedead: values.Get("max_redead"),
		Limit:     values.Get("limit"), To: values.Get("to"), Note: values.Get("note"),
	}
}

// query returns the options as a query, for readOptions.
func (o redriveOptions) query() template.URL {
	return template.URL(url.Values{
		"rate": {o.Rate}, "canary": {o.Canary}, "canary_wait": {o.CanaryWait}, "max_redead": {o.MaxRedead},
		"limit": {o.Limit}, "to": {o.To}, "note": {o.Note},
	}.Encode())
}

// read returns the options, and what is wrong with them.
func (o redriveOptions) read() (options letters.Redrive, faults []string) {
	count := func(name, text string) int {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if text != "" && (err != nil || n < 0) {
			faults = append(faults,
				fmt.Sprintf("%s is %q: write a whole number, or leave it empty.", name, cut(80, text)))
		}
		return max(n, 0)
	}
	real := func(name, text string, most float64) float64 {
		n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if text != "" && (err != nil || !(n >= 0 && n <= most)) {
			faults = append(faults,
				fmt.Sprintf("%s is %q: write a number from 0 to %v, or leave it empty.", name, cut(80, text), most))
			return 0
		}
		return n
	}
	options = letters.Redrive{
		Rate: real("Rate", o.Rate, 1e6), Canary: count("Canary",
			o.Canary), MaxRedead: real("Stop when more than this share dies again", o.MaxRedead, 100) / 100,
		Limit: count("At most", o.Limit), To: strings.TrimSpace(o.To), Note: o.Note,
	}
	if o.CanaryWait != "" {
		wait, err := time.ParseDuration(strings.ReplaceAll(o.CanaryWait, " ", ""))
		if err != nil || wait < 0 {
			faults = append(faults, fmt.Sprintf("Watch the canary for is %q: write a duration such as 30s or 5m, "+
				"or leave it empty.", cut(80, o.CanaryWait)))
		} else if options.Canary > 0 {
			options.CanaryWait = wait
		}
	}
	if len(faults) == 0 {
		if err := options.Validate(); err != nil {
			faults = append(faults, err.Error())
		}
	}
	return options, faults
}

// discardForm counts the letters and shows the confirmation.
func (p *Page) discardForm(w http.ResponseWriter, r *http.Request) error {
	s, err := p.chosen(r)
	if err != nil {
		return err
	}
	return p.confirm(w, r, plan{selection: s, Verb: verbDiscard, By: p.config.By(r)}, 0,
		func(ctx context.Context, limit int, dry bool, progress func(letters.Progress)) (letters.Summary, error) {
			return p.config.Store.Discard(ctx, s.Queue,
				letters.Discard{Filter: s.filter(), Limit: limit, DryRun: dry, Progress: progress})
		})
}

func (p *Page) discard(w http.ResponseWriter, r *http.Request) error {
	if r.PostForm.Get("step") != "start" {
		return p.discardForm(w, r)
	}
	if r.PostForm.Get("sure") == "" {
		return failure{http.StatusUnprocessableEntity, "Discarded letters cannot be brought back. Go back, and " +
			"select the box that confirms it.", nil}
	}
	return p.start(w, r, verbDiscard)
}

// A changeFunc runs a redrive or discard of at most so many letters, or only counts them.
type changeFunc = func(
	ctx context.Context, limit int, dry bool, progress func(letters.Progress),
) (letters.Summary, error)

// confirm counts the letters of a plan, shows their number and asks. What then runs has this number as its limit.
func (p *Page) confirm(w http.ResponseWriter, r *http.Request, made plan, limit int, change changeFunc) error {
	if err := p.count(r.Context(), &made, limit, change); err != nil {
		return err
	}
	if made.Count == 0 && !made.AtLeast {
		return failure{http.StatusNotFound, "No letter of the queue is selected. They may have been redriven or " +
			"discarded meanwhile.", nil}
	}
	if !made.AtLeast {
		limit = made.Count
	}
	made.run = p.inTurn(made.Queue, limit, change)
	p.jobs.prepare(&made)
	p.render(w, http.StatusOK, "confirm.html", made.Verb, made)
	return nil
}

// count sets the number of letters of a plan, with a run that changes nothing.
func (p *Page) count(ctx context.Context, made *plan, limit int, change changeFunc) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	done, err := p.turns.take(ctx, made.Queue)
	if err != nil {
		made.AtLeast = true
		return nil
	}
	defer done()
	summary, err := change(ctx, limit, true, func(letters.Progress) {})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	made.Count, made.AtLeast, made.Total = summary.Done, err != nil, summary.Total
	return nil
}

// inTurn returns a run that begins when no view looks at the queue, so that it counts all letters. Then views may
// look again: what they take comes back.
func (p *Page) inTurn(queue string, limit int, change changeFunc) runFunc {
	return func(ctx context.Context, progress func(letters.Progress)) (letters.Summary, error) {
		done, err := p.turns.take(ctx, queue)
		if err != nil {
			return letters.Summary{}, err
		}
		defer done()
		return change(ctx, limit, false, func(now letters.Progress) {
			if now.Total > 0 || now.Phase == letters.Waiting {
				done()
			}
			progress(now)
		})
	}
}

func (p *Page) start(w http.ResponseWriter, r *http.Request, verb string) error {
	id := r.PostForm.Get("run")
	switch err := p.jobs.start(verb, id); {
	case errors.Is(err, errExpired):
		return failure{http.StatusConflict, "This confirmation is unknown or older than 15 minutes. Count the " +
			"letters again.", nil}
	case errors.Is(err, errTooMany):
		return failure{http.StatusServiceUnavailable, "Too many redrives and discards run. Wait until one has ended.",
			nil}
	case err != nil:
		return err
	}
	see(w, "job?id="+id)
	return nil
}

// job shows a redrive or discard that runs, or its summary. With the parameter part it is only what changes.
func (p *Page) job(w http.ResponseWriter, r *http.Request) error {
	found := p.jobs.find(r.URL.Query().Get("id"))
	if found == nil {
		return failure{http.StatusNotFound, "This page has no such redrive or discard. It keeps the last 20 until " +
			"the process ends.", nil}
	}
	name := "job.html"
	if r.URL.Query().Get("part") != "" {
		name = "job-part"
	}
	p.render(w, http.StatusOK, name, found.Verb, found.view(time.Now()))
	return nil
}

func (p *Page) stop(w http.ResponseWriter, r *http.Request) error {
	id := r.PostForm.Get("run")
	if !p.jobs.stop(id) {
		return failure{http.StatusNotFound, "There is no such redrive or discard.", nil}
	}
	see(w, "job?id="+id)
	return nil
}
