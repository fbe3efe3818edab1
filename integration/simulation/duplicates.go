package simulation

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// docs/guarantees.md has: "Without such a fault no message comes twice." So a call is repeated only where a connection
// was lost while the message was in flight: from its call until its acknowledgement is at the broker.

// loss is when connections are lost. Until its end it is not known at which moment.
type loss struct{ from, to time.Time }

// flight is when a message can be repeated by a loss.
type flight struct {
	process *process
	from    time.Time
	called  bool
	state   state     // with which the message came
	ended   time.Time // the end of the call; zero: it runs
	settled time.Time // when its outcome was reported; zero: it was not
	over    time.Time // when the router has acked or nacked it, with a handler that produces; zero: it has not
	produce bool      // what its call produces is published after its outcome, and before its ack
	alarmed bool      // what publishes its copy knew of an alarm at its end
	held    bool
	silent  bool // because no confirm came
	missed  bool // its outcome was to be known soon, and was not
	probe   bool // it was to show whether an outage lasts
	down    bool // it has failed because of that
}

const (
	// ackTime is how long an ack is on its way. While a consumer ends, acks wait for what its queue sends, up to 5 s.
	ackTime = 6 * time.Second
	// confirmTime is how long a copy is on its way, at most, before its publisher knows.
	confirmTime = 3 * time.Second
)

// lost reports whether its delivery was lost before the end of its call.
func (f *flight) lost() bool {
	at := time.Unix(0, f.process.lostAt.Load())
	return f.called && f.from.Before(at) && f.ended.Sub(at) > pauses
}

func (f *flight) until() time.Time {
	if f.settled.IsZero() || f.produce && f.over.IsZero() {
		return time.Now()
	}
	return latest(f.settled, f.over).Add(ackTime)
}

// lost notes that connections are lost from now on, for so long.
func (l *ledger) lost(lasts time.Duration) {
	l.faults.Lock()
	defer l.faults.Unlock()
	l.losses = append(l.losses, loss{time.Now(), time.Now().Add(lasts)})
	l.handedOver.Store(0)
}

// blocked notes that an alarm begins, for so long. What is written before its connection knows of it is confirmed after
// the alarm. Where that is after PublishTimeout, docs/guarantees.md has "when the confirm of a copy is lost or late".
func (l *ledger) blocked(lasts time.Duration) {
	if lasts <= publishTimeout {
		return
	}
	l.faults.Lock()
	defer l.faults.Unlock()
	l.late = append(l.late, loss{time.Now(), time.Now()})
}

// replacedAgain notes that a work queue is replaced once more.
func (l *ledger) replacedAgain() {
	l.faults.Lock()
	defer l.faults.Unlock()
	l.again = append(l.again, time.Now())
}

// isReplaced reports whether a work queue was replaced before it was consumed.
func (l *ledger) isReplaced() bool {
	l.faults.Lock()
	defer l.faults.Unlock()
	return len(l.again) > 0
}

// confirmsNot notes that the broker does not confirm what is moved to partitions, for so long.
func (l *ledger) confirmsNot(lasts time.Duration) {
	l.faults.Lock()
	defer l.faults.Unlock()
	l.silence = latest(l.silence, time.Now().Add(lasts+confirmTime))
}

// moverEnds notes that a channel that moves messages to partitions ends. What is not confirmed there is moved again.
func (l *ledger) moverEnds() {
	l.faults.Lock()
	defer l.faults.Unlock()
	if now := time.Now(); now.Before(l.silence) {
		l.movedAgain = append(l.movedAgain, loss{now, now})
	}
}

// lossesOf is how many losses have met a message in flight.
func (l *ledger) lossesOf(flights []*flight) int {
	l.faults.Lock()
	defer l.faults.Unlock()
	return l.met(l.losses, flights)
}

// lateOf is how many alarms have met a message in flight, whose copy can be confirmed late.
func (l *ledger) lateOf(flights []*flight) int {
	l.faults.Lock()
	defer l.faults.Unlock()
	return l.met(l.late, flights)
}

// movedAgainOf is how often at most a message in flight can have been moved again because its mover has ended.
func (l *ledger) movedAgainOf(flights []*flight) int {
	l.faults.Lock()
	defer l.faults.Unlock()
	return l.met(l.movedAgain, flights)
}

// met counts the losses that have met a message in flight. A delivery that is on its way then is called after the loss.
func (l *ledger) met(losses []loss, flights []*flight) (count int) {
	onTheWay := l.plan.latency
	if l.plan.mayHave(slow) {
		onTheWay += slowBy
	}
	for _, of := range losses {
		meets := func(f *flight) bool {
			return !of.to.Add(onTheWay).Before(f.from) && !of.from.After(f.until())
		}
		if slices.ContainsFunc(flights, meets) {
			count++
		}
	}
	return count
}

// quiet reports whether no connection was lost since then.
func (l *ledger) quiet(since time.Time) bool {
	l.faults.Lock()
	defer l.faults.Unlock()
	return !slices.ContainsFunc(l.losses, func(of loss) bool { return of.to.After(since) })
}

// double checks that a call is repeated only where a fault allows it. Each loss can double what is in flight.
func (l *ledger) double(m *letter, v *visit, record retry.Record) {
	if l.plan.shape == keepsOrder {
		l.rewound(m)
		return
	}
	allowed := 1
	switch copies := l.plan.copies(); {
	case l.plan.mayHave(withheld) && l.plan.hops(m.id): // each tier can have two
		return
	case copies > 1:
		allowed = max(1, copies*m.before(record))
	}
	if l.plan.fate(m.id).how == returns {
		allowed++
	}
	if l.redrives[m.queue] > 0 && m.redriven == 0 && v.calls > 1 { // its last outcome may be reported later
		m.redriven++
	}
	allowed = (allowed + m.givenBack) * (1 + m.redriven)
	losses := min(l.lossesOf(m.flights)+l.lateOf(m.flights), 8)
	// The builder publishes the copy of a delivery that is lost, too. Slow acks leave a message in flight twice.
	// What is taken and not confirmed can be in flight after each failure.
	if l.plan.shape == builder || l.plan.mayHave(slow) {
		losses *= 2
	}
	if l.plan.mayHave(withheld) {
		losses *= len(l.plan.schedule) + 1
	}
	if v.calls > allowed<<min(losses, 20) {
		l.violate(m.id, "%s is called again, which no fault explains: %d times, %d losses", m.id, v.calls, losses)
	}
}

// before is how many calls can have led to one with this record.
func (m *letter) before(record retry.Record) (calls int) {
	for _, s := range []state{{record.Failures - 1, record.Snoozes}, {record.Failures, record.Snoozes - 1}} {
		if v := m.states[s]; v != nil {
			calls += v.calls
		}
	}
	return calls
}

// rewound checks that an ordered message does not come again after its end without a loss. docs/order.md has: "Another
// process calls the handler at once, and begins the schedule again at failure 1." So the last failure is not the end,
// but the dead letter is. Until that is published, the message is held, and goes back with its partition: "A message
// that is held after its call does not delay this." What was moved twice comes again behind all others. Each mover that
// ends before it knows is followed by one that moves it again: docs/guarantees.md has "when the confirm of a copy is
// lost or late, and the copy is published again". A loss right after a move repeats it, too, beside the call.
func (l *ledger) rewound(m *letter) {
	ends := l.ends(m)
	if ends == 0 || m.redriven > 0 || l.plan.copies() > 1 && len(l.plan.faults) > 1 {
		return
	}
	whole := &flight{from: m.published, settled: m.published}
	for _, f := range m.flights {
		if f.until().After(whole.settled) && !f.ended.IsZero() {
			whole.settled = f.until()
		}
	}
	moving := &flight{from: m.published, settled: m.flights[0].from}
	losses, moved := l.lossesOf([]*flight{whole}), l.movedAgainOf([]*flight{whole})+l.lossesOf([]*flight{moving})
	if ends >= (1+moved)<<min(losses, 8) {
		l.violate(m.id, "%s is called again after its end, which no fault explains: %d ends, %d losses, moved again %d times",
			m.id, ends, losses, moved)
	}
}

// ends is how often a message has ended.
func (l *ledger) ends(m *letter) int {
	count := m.succeeded + m.discarded
	if !m.finished || l.plan.breaker { // a probe that fails does not end its message
		return count
	}
	return count + l.dead(m)
}

// dead is how many dead letters a message has.
func (l *ledger) dead(m *letter) (count int) {
	for _, dead := range l.broker.Messages(m.queue + ".dead") {
		if string(dead.Body) == m.id {
			count++
		}
	}
	return count
}

// redriving notes that the dead letters of a queue are sent back, until the function is called that it returns.
func (l *ledger) redriving(queue string) (over func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var flights []*flight
	for _, dead := range l.broker.Messages(queue + ".dead") {
		if m := l.letters[queue+string(dead.Body)]; m != nil {
			f := &flight{from: time.Now()}
			m.flights = append(m.flights, f)
			flights = append(flights, f)
			m.redriven++
		}
	}
	l.redrives[queue]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.redrives[queue]--
		for _, f := range flights {
			f.ended, f.settled = time.Now(), time.Now()
		}
	}
}

// unordered reports whether a message is published again after its failure, and the handler has a subscriber of ours.
func (p plan) unordered() bool { return p.shape != keepsOrder && p.shape != builder }

// planned are what an app or an operator does. A handler has the time to end its calls.
var planned = []string{deploy, rolling, readd, pause, looks, redrive, purge}

// only reports whether a plan has no other faults.
func (p plan) only(kinds ...string) bool {
	return !slices.ContainsFunc(p.faults, func(f fault) bool { return !slices.Contains(kinds, f.kind) })
}

// endsCalls reports whether a process ends its calls: one of the builder is stopped. docs/outcomes.md has "shutdown" as
// a reason why a message is given back, and docs/guarantees.md promises the 30 s for handlers of Connect alone.
func (p *process) endsCalls() bool { return p.world.plan.shape == builder && p.ending.Load() }

func copies(o retry.Outcome) bool {
	return o == retry.Retried || o == retry.Snoozed || o == retry.DeadLettered
}

// observer sees the outcomes of the calls of a process.
type observer struct {
	process *process
}

// Event implements retry.Observer.
func (o observer) Event(e retry.Event) {
	l := o.process.world.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[queueOf(e.Handler)+e.MessageUUID]
	if m == nil {
		return
	}
	if e.Outcome == retry.DeadLettered && l.redrives[m.queue] > 0 { // it sends this letter, too
		m.redriven++
	}
	if e.Outcome == retry.GivenBack && !o.process.dead.Load() {
		m.givenBack++
	}
	record, _ := retry.ReadRecord(e.Metadata)
	came := state{record.Failures, record.Snoozes}
	of := slices.IndexFunc(m.flights, func(f *flight) bool {
		return f.process == o.process && f.state == came && !f.ended.IsZero() && f.settled.IsZero() &&
			!(f.held && e.Outcome == retry.Held) // another copy of the message
	})
	if of < 0 && (e.Outcome == retry.Processed || e.Outcome == retry.Recovered) {
		l.violate(m.id, "%s is %s without a call, or once more", m.id, e.Outcome)
	}
	if of < 0 { // there was no call
		of = len(m.flights)
		at := time.Now()
		if unconfirmed(e) { // its copy was published before
			at = at.Add(-publishTimeout)
		}
		m.flights = append(m.flights, &flight{process: o.process, state: came, from: at.Add(-confirmTime), ended: at})
	}
	f, was := m.flights[of], m.flights[of].held
	if l.plan.unordered() && f.lost() && copies(e.Outcome) {
		l.violate(m.id, "%s is %s after its delivery was lost", m.id, e.Outcome)
	}
	l.countsNot(m, f, e)
	switch {
	case e.Outcome == retry.Held && errors.Is(e.Err, publish.ErrNacked) && e.Record.DeadReason == "":
		l.violate(m.id, "%s is held although another tier can have room: %v", m.id, e.Err)
	case e.Outcome == retry.DeadLettered && m.calls == 0:
		l.violate(m.id, "%s is a dead letter, %s, and was never called", m.id, e.Record.DeadReason)
	case e.Outcome == retry.GivenBack && f.called && !was && l.plan.fate(m.id).how != returns &&
		l.plan.only(planned...) && !o.process.endsCalls():
		l.violate(m.id, "%s goes back after its call, which no fault explains", m.id)
	}
	if was {
		l.copiedAgain(m, f, e)
	}
	f.silent = f.silent || unconfirmed(e)
	if f.held = e.Outcome == retry.Held; !f.held {
		f.settled = time.Now()
	}
	if f.called && !f.held {
		o.process.settled(m.queue)
	}
	if f.held != was {
		o.process.holding(m.queue, map[bool]int{true: 1, false: -1}[f.held])
	}
}

// unconfirmed reports whether the message is held because its copy was written, and not confirmed.
func unconfirmed(e retry.Event) bool {
	return e.Outcome == retry.Held && errors.Is(e.Err, publish.ErrNotConfirmed) &&
		!strings.Contains(e.Err.Error(), "not written in time")
}
