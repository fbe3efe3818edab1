package cli

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

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
	some  bool   // letters are selected: not all of them are sent
	limit int    // at most so many are; 0: all that are selected

	mu      sync.Mutex
	last    time.Time // the time of the last line
	phase   letters.Phase
	stopped bool
}

// meter starts a meter. Its caller stops it before it prints.
func (e *env) meter(title, verb string) *meter {
	return &meter{env: e, title: title, verb: verb, last: time.Now()}
}

// show shows progress. It is a letters.Redrive.Progress.
func (m *meter) show(p letters.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || p.Phase == letters.Ended {
		return
	}
	changed := p.Phase != m.phase
	m.phase = p.Phase
	message := m.env.scrub(m.message(p))
	if m.env.errTerminal {
		line := text.Snip(m.title+": "+message, cmp.Or(m.env.width, 80)-1, "…")
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

// stop removes the line from the terminal. It may be called twice.
func (m *meter) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopped && m.env.errTerminal {
		_, _ = fmt.Fprint(m.env.stderr, "\r"+text.EraseLine.Sprint())
	}
	m.stopped = true
}
