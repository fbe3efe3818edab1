package middleware

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/retry"
)

// A machine decides when a handler pauses, and how many places it has: how many of its messages may be delivered and
// not settled. It has no clock and no timer: it gets the time, and returns when it is to be called again (due).
//
//	stage      places                  a success                   a failure                  when due
//	going      no limit                is counted                  is counted; the share of   -
//	                                                               Ratio begins a pause
//	paused     0                       -                           -                          probing, with 1 place
//	probing    1, and the extra ones   ramping, with 2 places      a pause of twice the       one extra place
//	                                                               length
//	ramping    2, 4, 8 ..., and the    as many as the places: the  the share of Ratio in the  one extra place
//	           extra ones              next step, or going where   step begins a pause of
//	                                   that is Concurrency         twice the length
//
// A pause is due at its end. A limit is due when nothing has moved for MaxPause: it was not set, no handler was called,
// and none has returned. If all places are taken then, one more is given. So a place never holds the handler up,
// whatever takes it: a handler that hangs, a copy that is held before a handler is called, a message that waits for its
// key. Extra places go when handlers return.
//
// A rule that pauses begins or prolongs a pause in every stage. An outcome counts in the stages for which its ticket
// was given.
type machine struct {
	subject     *subject
	config      retry.Breaker
	counts      bool // a Breaker is configured; otherwise only rules pause the handler
	concurrency int  // places without a limit; 0: not known
	begun       time.Time

	ticket ticket
	stage  stage
	window window

	pause time.Duration // the present or last pause, before it is shortened
	since time.Time     // when the first pause began
	until time.Time     // when the present pause ends

	places  int // the number of places of the stage
	step    step
	extra   int
	flight  int       // handlers that were called with the present ticket and have not returned
	outside int       // places that something else took at the last tick
	moved   time.Time // the last time that something moved
}

// A subject is what a machine pauses.
type subject struct {
	name     string // its name in log lines
	messages string // what new messages do meanwhile
	// prepared is for how many outcomes the window has memory at first. It gets more when it needs it: that of a handler
	// does not, with the defaults, and a key may never come again.
	prepared int
}

var (
	handlerSubject = &subject{"Handler", "stay in the queue", 128}
	keySubject     = &subject{"Key", "wait on a tier", 8}
)

// stage is what the handler does.
type stage int

const (
	going   stage = iota // without a limit
	paused               // takes no messages
	probing              // one message decides
	ramping              // few messages, then more
)

// step counts the outcomes under one limit of the ramp.
type step struct{ successes, failures int }

// A ticket is what a message gets when its handler is called. An outcome with an old ticket says nothing about the
// present stage. Odd: the handler is limited.
type ticket uint64

func (t ticket) limited() bool { return t&1 == 1 }

// verdict is what an outcome says about other messages.
type verdict int

const (
	noSign verdict = iota
	good
	bad
)

const (
	// rampWithoutConcurrency is where the ramp ends if the number of messages in flight is not known.
	rampWithoutConcurrency = 16

	// leastOfStep is how many outcomes of a step there must be before Ratio counts. One message that always fails must
	// not end the ramp.
	leastOfStep = 4
)

const (
	defaultRatio    = 0.5
	defaultLeast    = 20
	defaultWindow   = 10 * time.Second
	defaultPause    = time.Second
	defaultMaxPause = 30 * time.Second
	defaultShare    = 0.5

	// a key has a small part of the messages
	defaultLeastOfKey  = 5
	defaultWindowOfKey = time.Minute
)

// withDefaults keeps Pause at most MaxPause where only one of them is set.
func withDefaults(b retry.Breaker) retry.Breaker {
	least, window := defaultLeast, defaultWindow
	if b.Key != nil {
		least, window = defaultLeastOfKey, defaultWindowOfKey
	}
	b.Ratio, b.Least, b.Window = cmp.Or(b.Ratio, defaultRatio), cmp.Or(b.Least, least), cmp.Or(b.Window, window)
	if b.MaxPause == 0 {
		b.MaxPause = max(b.Pause, defaultMaxPause)
	}
	b.Pause = cmp.Or(b.Pause, min(b.MaxPause, defaultPause))
	b.Share = cmp.Or(b.Share, defaultShare)
	return b
}

func newMachine(of *subject, config *retry.Breaker, concurrency int, now time.Time) *machine {
	m := &machine{subject: of, counts: config != nil, concurrency: concurrency, begun: now}
	if config != nil {
		m.config = *config
	}
	m.config = withDefaults(m.config)
	m.window = newWindow(m.config.Least, m.config.Window, of.prepared)
	return m
}

// limit is how many places the handler has.
func (m *machine) limit() int {
	switch m.stage {
	case going:
		return gate.None
	case paused:
		return 0
	default:
		return m.places + m.extra
	}
}

// due is when tick is to be called; zero: not before something else happens.
func (m *machine) due() time.Time {
	switch m.stage {
	case going:
		return time.Time{}
	case paused:
		return m.until
	default:
		return m.moved.Add(m.config.MaxPause)
	}
}

// line is what is logged. The zero value is nothing.
type line struct {
	warn   bool
	text   string
	fields watermill.LogFields
}

// tick is called when something is due. taken is how many places are taken.
func (m *machine) tick(now time.Time, taken int) line {
	if due := m.due(); due.IsZero() || now.Before(due) {
		return line{}
	}
	if m.stage == paused {
		m.next(probing)
		m.places, m.step, m.moved = 1, step{}, now
		return line{}
	}
	m.moved, m.outside = now, max(taken-m.flight, 0)
	m.extra = min(m.extra, m.flight+m.outside)
	if taken < m.limit() || m.concurrency > 0 && m.limit() >= m.concurrency {
		return line{}
	}
	m.extra++
	return line{text: "No outcome since the pause, one message more is let through", fields: watermill.LogFields{
		"places_taken": taken, "places": m.limit(), "waited": m.config.MaxPause,
	}}
}

// called returns the ticket of a handler that is called.
func (m *machine) called(now time.Time) ticket {
	if m.ticket.limited() {
		m.flight++
		m.moved = now
	}
	return m.ticket
}

func (m *machine) returned(of ticket, now time.Time) {
	if of != m.ticket || !of.limited() {
		return
	}
	m.flight--
	m.extra = min(m.extra, m.flight+m.outside)
	m.moved = now
}

// outcome counts an outcome. It reports whether it is that of a failed probe.
func (m *machine) outcome(of ticket, v verdict, now time.Time) (probe bool, l line) {
	if of != m.ticket || v == noSign {
		return false, line{}
	}
	switch m.stage {
	case going:
		m.window.add(now.Sub(m.begun), v == bad)
		if v == bad && m.tooMany(m.window.failures, m.window.count, m.config.Least) {
			l = m.opens(now, shareOf(m.window.failures, m.window.count))
		}
	case probing:
		if v == bad {
			m.lengthen()
			return true, m.begins(now, 0, watermill.LogFields{})
		}
		m.stage = ramping
		l = line{
			text:   m.subject.name + " goes on, a message has succeeded after the pause",
			fields: watermill.LogFields{"paused_for": now.Sub(m.since)},
		}
		m.grow(now)
	case ramping:
		l = m.outcomeOfStep(v, now)
	}
	return false, l
}

func (m *machine) outcomeOfStep(v verdict, now time.Time) line {
	if v == good {
		if m.step.successes++; m.step.successes >= m.places {
			m.grow(now)
		}
		return line{}
	}
	m.step.failures++
	all := m.step.failures + m.step.successes
	if !m.tooMany(m.step.failures, all, min(m.config.Least, max(m.places, leastOfStep))) {
		return line{}
	}
	m.lengthen()
	return m.begins(now, 0, shareOf(m.step.failures, all))
}

func (m *machine) tooMany(failures, outcomes, least int) bool {
	return outcomes >= least && float64(failures) >= m.config.Ratio*float64(outcomes)
}

func shareOf(failures, messages int) watermill.LogFields {
	return watermill.LogFields{"failures": failures, "messages": messages,
		"share": fmt.Sprintf("%.2f", float64(failures)/float64(messages))}
}

// rule pauses the handler because of a rule or an error.
func (m *machine) rule(of ticket, wait time.Duration, name string, now time.Time) line {
	if m.stage == paused {
		if until := now.Add(wait); until.After(m.until) { // of a message that was in flight
			m.pause, m.until = max(m.pause, wait), until
		}
		return line{}
	}
	least := wait
	if m.stage == probing && of == m.ticket {
		m.lengthen()
		wait = max(wait, m.pause)
	}
	m.pause = wait
	return m.begins(now, least, watermill.LogFields{"rule": name})
}

// lasting is the pause, without what an error has requested beyond MaxPause.
func (m *machine) lasting() time.Duration { return min(m.pause, m.config.MaxPause) }

func (m *machine) lengthen() { m.pause = min(2*m.pause, m.config.MaxPause) }

// grow begins the next step of the ramp, or ends it.
func (m *machine) grow(now time.Time) {
	end := m.concurrency
	if end == 0 {
		end = rampWithoutConcurrency + 1
	}
	m.places, m.step, m.moved = 2*m.places, step{}, now
	if m.places >= end {
		m.next(going)
		m.window.clear()
	}
}

// opens begins the first pause.
func (m *machine) opens(now time.Time, fields watermill.LogFields) line {
	m.pause = m.config.Pause
	return m.begins(now, 0, fields)
}

// begins begins a pause, which is shortened at random, but not below the least.
func (m *machine) begins(now time.Time, least time.Duration, fields watermill.LogFields) line {
	again := m.stage != going
	m.next(paused)
	wait := max(m.pause-rand.N(m.pause/4+1), least)
	m.until = now.Add(wait)
	fields["pause"] = wait
	if again {
		return line{text: m.subject.name + " pauses again", fields: fields}
	}
	m.since = now
	return line{warn: true, text: m.subject.name + " pauses, new messages " + m.subject.messages, fields: fields}
}

// next begins a stage in which older tickets count no more.
func (m *machine) next(to stage) {
	if m.ticket += 2; m.ticket.limited() != (to != going) {
		m.ticket++
	}
	m.stage, m.flight, m.extra, m.outside = to, 0, 0, 0
}
