package middleware

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/sony/gobreaker"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/warning"
)

// A breaker pauses one handler. The states are those of gobreaker: closed, open, half-open. What is added is that the handler takes no
// messages while it is open, one message when it is half-open, and then few messages until the ramp is over.
type breaker struct {
	config  Breaker
	counts  bool // a Breaker is configured; otherwise only rules pause the handler
	gate    *gate.Gate
	logger  watermill.LoggerAdapter
	fields  watermill.LogFields
	present atomic.Uint64 // the present ticket

	mu      sync.Mutex // not held while functions of the app run, its logger's among them
	machine *gobreaker.CircuitBreaker
	state   gobreaker.State  // of machine
	counted gobreaker.Counts // at the last failure in state closed
	force   bool             // the next failure opens the machine
	stage   stage
	pause   time.Duration // the present or last pause, before it is shortened
	since   time.Time     // when the first pause began
	until   time.Time     // when the present pause ends
	timer   *time.Timer   // ends the pause
	limit   int           // of the ramp
	step    step
	flight  int // messages with the present ticket that are in flight
	hung    int // those of them that are no longer waited for
	ended   int // how many have ended
	stall   *time.Timer
}

// stage is what the handler does.
type stage int

const (
	going   stage = iota // without a limit
	paused               // takes no messages
	probing              // one message decides
	ramping              // few messages, then more
)

// step counts outcomes under one limit of the ramp.
type step struct{ successes, failures int }

// A ticket is what a message gets when its handler is called. An outcome with an old ticket says nothing about the present stage.
// Odd: the handler is limited.
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

	// leastOfStep is how many outcomes of a step there must be before Ratio counts. One message that always fails must not end the ramp.
	leastOfStep = 4
)

func newBreaker(config *Breaker, g *gate.Gate, logger watermill.LoggerAdapter, fields watermill.LogFields) *breaker {
	b := &breaker{counts: config != nil, gate: g, logger: logger, fields: fields}
	if config != nil {
		b.config = *config
	}
	b.config = b.config.withDefaults()
	b.renew()
	return b
}

// renew makes a closed machine without counts.
func (b *breaker) renew() {
	b.state = gobreaker.StateClosed
	b.machine = gobreaker.NewCircuitBreaker(gobreaker.Settings{
		MaxRequests: 1,
		Interval:    b.config.Window,
		Timeout:     1, // b.timer ends the pause
		ReadyToTrip: b.isTooMuch,
		OnStateChange: func(_ string, _, to gobreaker.State) {
			b.state = to
		},
	})
}

// isTooMuch is called with b locked.
func (b *breaker) isTooMuch(counts gobreaker.Counts) bool {
	b.counted = counts
	outcomes, failures, least := int(counts.Requests), int(counts.TotalFailures), b.config.Least
	if b.stage == ramping {
		outcomes, failures = b.step.successes+b.step.failures, b.step.failures
		least = min(least, max(b.limit, leastOfStep))
	}
	return b.force || outcomes >= least && float64(failures) >= b.config.Ratio*float64(outcomes)
}

// feed makes an outcome known to the machine. Functions that exist already cost no allocation, as the ones of a TwoStepCircuitBreaker do.
func (b *breaker) feed(v verdict) {
	outcome := succeeded
	if v == bad {
		outcome = failed
	}
	_, _ = b.machine.Execute(outcome)
}

var errCounted = errors.New("a failure")

func succeeded() (any, error) { return nil, nil }
func failed() (any, error)    { return nil, errCounted }

// begin is called before the handler is, and leave after the message is settled.
func (b *breaker) begin() ticket {
	if present := ticket(b.present.Load()); !present.limited() {
		return present
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	present := ticket(b.present.Load())
	if present.limited() {
		b.flight++
		b.watch()
	}
	return present
}

func (b *breaker) leave(of ticket) {
	if !of.limited() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if of != ticket(b.present.Load()) {
		return
	}
	b.flight--
	b.ended++
	if b.hung > b.flight {
		b.hung = b.flight
		b.setLimit()
	}
}

// line is what is logged after b is unlocked.
type line struct {
	warn   bool
	text   string
	fields watermill.LogFields
}

func (b *breaker) log(l line) {
	switch {
	case l.text == "":
	case l.warn:
		warning.Log(b.logger, l.text, b.fields.Add(l.fields))
	default:
		b.logger.Info(l.text, b.fields.Add(l.fields))
	}
}

// report gets the outcome of a message, and reports whether it was a failed probe.
func (b *breaker) report(of ticket, v verdict) (probe bool) {
	if v == noSign || !b.counts && !of.limited() {
		return false
	}
	b.mu.Lock()
	var l line
	if of == ticket(b.present.Load()) && b.stage != paused {
		probe = v == bad && b.stage == probing
		l = b.count(v)
	}
	b.mu.Unlock()
	b.log(l)
	return probe
}

func (b *breaker) count(v verdict) line {
	if b.stage == ramping && v == bad {
		b.step.failures++
	} else if b.stage == ramping {
		b.step.successes++
	}
	was := b.stage
	b.feed(v)
	switch {
	case was == going && b.state == gobreaker.StateOpen:
		b.pause = b.config.Pause
		return b.begins(b.shortened(0), shareOf(int(b.counted.TotalFailures), int(b.counted.Requests)))
	case was == probing && b.state == gobreaker.StateClosed:
		b.limit, b.stage = 1, ramping
		b.grow()
		return line{text: "Handler goes on, a message has succeeded after the pause", fields: watermill.LogFields{"paused_for": time.Since(b.since)}}
	case was != going && b.state == gobreaker.StateOpen:
		fields := watermill.LogFields{}
		if was == ramping {
			fields = shareOf(b.step.failures, b.step.failures+b.step.successes)
		}
		b.lengthen()
		return b.begins(b.shortened(0), fields)
	case was == ramping && b.step.successes >= b.limit:
		b.grow()
	}
	return line{}
}

func shareOf(failures, messages int) watermill.LogFields {
	return watermill.LogFields{"failures": failures, "messages": messages, "share": fmt.Sprintf("%.2f", float64(failures)/float64(messages))}
}

func (b *breaker) lengthen() { b.pause = min(2*b.pause, b.config.MaxPause) }

// shortened returns the pause, shortened at random, but not below the least.
func (b *breaker) shortened(least time.Duration) time.Duration {
	return max(b.pause-rand.N(b.pause/4+1), least)
}

// grow begins the next step of the ramp, or ends it.
func (b *breaker) grow() {
	end := b.gate.Concurrency()
	if end == 0 {
		end = rampWithoutConcurrency + 1
	}
	b.limit, b.step = 2*b.limit, step{}
	if b.limit < end {
		b.setLimit()
		return
	}
	b.next(going)
	b.renew()
	b.gate.Set(gate.Failing, gate.None)
}

func (b *breaker) setLimit() { b.gate.Set(gate.Failing, b.limit+b.hung) }

// next begins a stage in which older tickets count no more.
func (b *breaker) next(to stage) {
	now := ticket(b.present.Load())
	if now += 2; now.limited() != (to != going) {
		now++
	}
	b.present.Store(uint64(now))
	b.stage, b.flight, b.hung = to, 0, 0
	b.timer, b.stall = stop(b.timer), stop(b.stall)
}

func stop(t *time.Timer) *time.Timer {
	if t != nil {
		t.Stop()
	}
	return nil
}

// begins begins a pause.
func (b *breaker) begins(wait time.Duration, fields watermill.LogFields) line {
	again := b.stage != going
	b.next(paused)
	now := time.Now()
	b.until = now.Add(wait)
	b.gate.Set(gate.Failing, 0)
	b.arm()
	fields["pause"] = wait
	if again {
		return line{text: "Handler pauses again", fields: fields}
	}
	b.since = now
	return line{warn: true, text: "Handler pauses, new messages stay in the queue", fields: fields}
}

// pauseFor pauses the handler because of a rule or an error.
func (b *breaker) pauseFor(of ticket, wait time.Duration, rule string) {
	b.mu.Lock()
	l := b.pauseAtOnce(of, wait, rule)
	b.mu.Unlock()
	b.log(l)
}

func (b *breaker) pauseAtOnce(of ticket, wait time.Duration, rule string) line {
	if b.stage == paused {
		if until := time.Now().Add(wait); until.After(b.until) { // of a message that was in flight
			b.pause, b.until = max(b.pause, wait), until
			b.arm()
		}
		return line{}
	}
	least := wait
	if b.stage == probing && of == ticket(b.present.Load()) {
		b.lengthen()
		wait = max(wait, b.pause)
	}
	b.pause = wait
	b.force = true
	b.feed(bad)
	b.force = false
	return b.begins(b.shortened(least), watermill.LogFields{"rule": rule})
}

// arm starts the timer of the pause, unless the handler's subscriptions have ended.
func (b *breaker) arm() {
	b.timer = stop(b.timer)
	if !b.gate.Ended() {
		of := b.present.Load()
		b.timer = time.AfterFunc(time.Until(b.until), func() { b.probe(of) })
	}
}

// Changed stops the timers when the handler's subscriptions have ended, and continues the pause when one begins.
func (b *breaker) Changed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ended := b.gate.Ended(); {
	case ended:
		b.timer, b.stall = stop(b.timer), stop(b.stall)
	case b.stage == paused && b.timer == nil:
		b.arm()
	}
}

// probe ends the pause.
func (b *breaker) probe(of uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if of != b.present.Load() || time.Now().Before(b.until) { // a timer that was replaced
		return
	}
	b.next(probing)
	b.limit, b.step = 1, step{}
	b.setLimit()
}

// watch waits for the end of a message while the handler is limited.
func (b *breaker) watch() {
	if b.stall != nil || b.stage != probing && b.stage != ramping {
		return
	}
	of, ended := b.present.Load(), b.ended
	b.stall = time.AfterFunc(b.config.MaxPause, func() { b.stalled(of, ended) })
}

// stalled lets one message more through where none has ended for MaxPause.
func (b *breaker) stalled(of uint64, ended int) {
	b.mu.Lock()
	var l line
	if of == b.present.Load() {
		b.stall = nil
		switch {
		case b.flight <= b.hung:
		case b.ended != ended:
			b.watch()
		default:
			b.hung = b.flight
			b.setLimit()
			l = line{text: "Handler has not returned since the pause, one message more is let through",
				fields: watermill.LogFields{"in_flight": b.hung, "waited": b.config.MaxPause}}
		}
	}
	b.mu.Unlock()
	b.log(l)
}
