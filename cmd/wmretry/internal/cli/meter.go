package cli

import (
	"fmt"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/tieredretry/watermill-retry/letters"
)

// lineEvery is the time between two lines of progress where stderr is no terminal.
const lineEvery = 5 * time.Second

// meter shows the progress of a call on stderr: on a terminal one line that changes, else a line every few seconds.
// Its methods may be called by several goroutines.
type meter struct {
	env   *env
	title string
	verb  string // what is done to letters, such as "sent"
	limit int    // --limit

	mu      sync.Mutex
	last    time.Time // of the last line
	phase   letters.Phase
	stopped bool
	began   time.Duration // Elapsed when the watch of the canary began
	watched time.Duration // how long canaries were watched
}

// meter starts a meter. Its caller stops it before it prints.
func (e *env) meter(title, verb string) *meter {
	return &meter{env: e, title: title, verb: verb, last: time.Now()}
}

// errWidth is the width of stderr.
func (e *env) errWidth() int {
	if file, ok := e.stderr.(interface{ Fd() uintptr }); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// show shows progress. It is a letters.Redrive.Progress.
func (m *meter) show(p letters.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	if p.Phase == letters.Ended {
		m.enter(p)
		return
	}
	changed := p.Phase != m.phase
	m.enter(p)
	message := m.env.scrub(m.message(p))
	if m.env.errTerminal {
		percent := ""
		if value, total := m.part(p); total > 0 {
			percent = fmt.Sprintf("%3d%%  ", 100*value/total)
		}
		line := text.Snip(percent+m.title+": "+message, m.env.errWidth()-1, "…")
		_, _ = fmt.Fprint(m.env.stderr, "\r"+text.EraseLine.Sprint()+line)
		return
	}
	// The broker's absence and the watch are worth a line at once.
	if at := time.Now(); at.Sub(m.last) >= lineEvery || changed &&
		(p.Phase == letters.Waiting || p.Phase == letters.Watching) {
		m.last = at
		_, _ = fmt.Fprintln(m.env.stderr, message)
	}
}

// enter notes the phase, and how long a watch has lasted: in that time no letter is sent.
func (m *meter) enter(p letters.Progress) {
	switch {
	case p.Phase == letters.Watching && m.phase != letters.Watching:
		m.began = p.Elapsed
	case p.Phase != letters.Watching && m.phase == letters.Watching:
		m.watched += p.Elapsed - m.began
	}
	m.phase = p.Phase
}

// watchedFor is how long canaries were watched. It is complete after the end of the call.
func (m *meter) watchedFor() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watched
}

// part returns how much of the work is done, and all of it: up to the limit, where that ends the work earlier.
func (m *meter) part(p letters.Progress) (value, total int) {
	value, total = p.Total-p.Unseen, p.Total
	if m.limit > 0 && p.Done*total > m.limit*value {
		return p.Done, m.limit
	}
	return value, total
}

func (m *meter) message(p letters.Progress) string {
	done := thousands(p.Done)
	if p.Total > 0 {
		done += " of " + thousands(p.Total)
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
	p.Elapsed -= m.watched
	message := fmt.Sprintf("%s, %s/s", done, thousands(int(p.PerSecond()+0.5)))
	if value, total := m.part(p); value > 0 && total > value {
		left := time.Duration(float64(p.Elapsed) / float64(value) * float64(total-value))
		message += fmt.Sprintf(", %v left", max(left.Round(time.Second), time.Second))
	}
	if p.Redead > 0 {
		message += ", " + thousands(p.Redead) + " died again"
	}
	return message
}

// count shows how many letters are done, where their number is not known before.
func (m *meter) count(done int, elapsed time.Duration) {
	m.show(letters.Progress{Summary: letters.Summary{Done: done}, Elapsed: elapsed, Phase: letters.Looking})
}

// stop removes the line from the terminal. It may be called twice.
func (m *meter) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopped && m.env.errTerminal {
		_, _ = fmt.Fprint(m.env.stderr, "\r"+text.EraseLine.Sprint())
	}
	m.stopped = true
}
