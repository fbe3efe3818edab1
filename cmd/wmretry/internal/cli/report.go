package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/tieredretry/watermill-retry/letters"
)

// report is what became of the letters of a redrive, discard or import, or of the messages of a drain.
type report struct {
	Command string `json:"command"`
	Queue   string `json:"queue,omitzero"`
	Address string `json:"address,omitzero"` // the address of the backend
	DryRun  bool   `json:"dry_run,omitzero"`
	letters.Summary
	Seconds     float64         `json:"seconds"`
	Interrupted bool            `json:"interrupted,omitzero"`
	Causes      []letters.Group `json:"causes,omitempty"` // why letters died again
	Export      string          `json:"export,omitzero"`
	Error       string          `json:"error,omitzero"`

	Beyond string `json:"-"` // what the limit of the meter is, in words

	env    *env
	meter  *meter
	filter letters.Filter
}

// report begins the report of a command that changes a queue, and shows its progress. of names what it changes.
func (e *env) report(command, queue, of string, o letters.Redrive) *report {
	r := &report{Command: command, Queue: queue, Address: e.where, DryRun: o.DryRun, env: e,
		filter: o.Filter, Beyond: "--limit"}
	r.meter = e.meter(command+" of "+safe(of), e.text("verb", r), o)
	return r
}

// end notes what the command has done.
func (r *report) end(ctx context.Context, summary letters.Summary) *report {
	r.Summary, r.Seconds, r.Interrupted = summary, time.Since(r.meter.start).Seconds(), ctx.Err() != nil
	return r
}

// finish prints the report, unless the command did not begin, and returns the error that it ends with.
func (r *report) finish(err error) error {
	e := r.env
	if err != nil && r.Summary == (letters.Summary{}) {
		return e.explain(err)
	}
	if err != nil {
		r.Error = e.scrub(err.Error())
		if r.Interrupted && errors.Is(err, context.Canceled) {
			r.Error = interruption(err)
		}
		err = e.explain(err)
	}
	printed := e.output(r, func() string { return e.text("report", r) })
	if err == nil && r.Done == 0 && r.Kept == 0 {
		err = e.nothing(r.Queue, r.filter)
	}
	return errors.Join(printed, err)
}

// Title names what is done to which queue, and where.
func (r *report) Title() string {
	return strings.ToUpper(r.Command[:1]) + r.Command[1:] + r.env.at(only(r.Queue != "", " of "+r.Queue))
}

// Took is for how long the command ran.
func (r *report) Took() time.Duration {
	return time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
}

// Limited reports whether the limit has ended the command.
func (r *report) Limited() bool {
	most := r.meter.limit
	return r.Error == "" && most > 0 && r.Done >= most
}

// lineEvery is the time between two lines of progress where stderr is no terminal.
const lineEvery = 5 * time.Second

// meter shows the progress of a call on stderr: on a terminal one line that changes, else a line every few seconds.
// Its methods may be called by several goroutines.
type meter struct {
	env   *env
	title string
	verb  string // what is done to letters, such as "sent"
	some  bool   // letters are selected: not all of them are sent
	limit int    // at most so many are; 0: all that are selected

	start time.Time

	mu    sync.Mutex
	last  time.Time // the time of the last line
	phase letters.Phase
}

// meter starts a meter for options.
func (e *env) meter(title, verb string, o letters.Redrive) *meter {
	now := time.Now()
	return &meter{env: e, title: title, verb: verb, some: selects(o.Filter), limit: o.Limit, start: now, last: now}
}

// show shows progress, and nothing from its end on. It is a letters.Redrive.Progress.
func (m *meter) show(p letters.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	message := m.env.scrub(m.message(p))
	switch at := time.Now(); {
	case m.phase == letters.Ended: // a late call
		return
	case m.env.errTerminal:
		line := text.Snip(m.title+": "+message, cmp.Or(m.env.width, 80)-1, "…")
		_, _ = fmt.Fprint(m.env.stderr, "\r"+text.EraseLine.Sprint()+only(p.Phase != letters.Ended, line))
	case p.Phase == letters.Ended:
	// The broker's absence and the watch are worth a line at once.
	case at.Sub(m.last) >= lineEvery, p.Phase != m.phase && (p.Phase == letters.Waiting || p.Phase == letters.Watching):
		m.last = at
		_, _ = fmt.Fprintln(m.env.stderr, message)
	}
	m.phase = p.Phase
}

func (m *meter) message(p letters.Progress) string {
	done := thousands(p.Done)
	if most := p.Total - p.Other; p.Total > 0 { // what is not looked at yet may be selected
		bound := " of "
		if m.limit > 0 && m.limit < most {
			most = m.limit
		}
		if p.Unseen > 0 && (m.some || most == m.limit) {
			bound += "at most "
		}
		done += bound + thousands(most)
	}
	done += " " + m.verb
	switch p.Phase {
	case letters.Waiting:
		why := "the broker is away or takes no messages"
		if p.Err != nil {
			why = safe(p.Err.Error())
		}
		return done + "; waits, and goes on when the broker is back: " + why
	case letters.Watching:
		return fmt.Sprintf("%s; watches the canary for %v: %s", done, max(time.Until(p.Until), 0).Round(time.Second),
			plural(p.Redead, "letter has died again", "letters have died again"))
	case letters.Canary:
		return done + " as a canary"
	}
	message := fmt.Sprintf("%s, %s/s", done, thousands(int(p.PerSecond()+0.5)))
	if left := p.Left(); left > 0 {
		message += fmt.Sprintf(", %v left", left)
	}
	if p.Redead > 0 {
		message += ", " + thousands(p.Redead) + " died again"
	}
	return message
}
