package simulation

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// letter is what is known of one message in one work queue.
type letter struct {
	id, queue string
	key       string
	number    int // in the order of its key
	published time.Time
	states    map[state]*visit
	calls     int
	inCall    int
	succeeded int
	discarded int
	outlasted bool      // a call outlasts the consumer timeout
	due       time.Time // when the next call is due
	flights   []*flight
	givenBack int // how often
	late      bool
	seen      time.Time // when it was not in its work queue for the last time, or called
	redriven  int
	purged    bool // whether an operator has purged it
	// failedDown is how often it has failed because of an outage.
	failedDown int
	furthest   int  // its failures and snoozes
	finished   bool // handled, or given up
}

// state is with which record a message comes to its handler.
type state struct{ failures, snoozes int }

type visit struct {
	calls int
	due   time.Time // not before this time. Zero: it has not been sent here
}

// ledger knows every message by its id.
type ledger struct {
	plan   plan
	began  time.Time
	broker *model.Broker

	faults     sync.Mutex // guards the next six: the model has its own mutex locked at an event
	calm       time.Time  // after this time no fault excuses anything
	losses     []loss
	late       []loss      // the begins of alarms that are longer than PublishTimeout
	again      []time.Time // when work queues were replaced once more
	silence    time.Time   // the end of the time in which the broker does not confirm what is moved
	movedAgain []loss      // the ends of movers in that time

	handedOver atomic.Int64 // the partitions in a row that processes have handed over because of their shares

	mu         sync.Mutex
	letters    map[string]*letter // the letters, by work queue and id
	ids        []string           // in the order in which they were published
	byKey      map[string][]*letter
	lastCall   map[string]time.Time // the time of the last call, by work queue
	alarm      time.Time            // since when there is one; zero: there is none
	stood      map[string]time.Time // the time until which nothing was due, by work queue, or by that and the key
	lastOf     map[string]time.Time // the time of the last call of a key, by work queue and key
	redrives   map[string]int       // the number of redrives that run, by work queue
	outages    map[handlerIn]*outage
	silent     *regexp.Regexp // the queues whose confirms are withheld
	violations []violation
}

func newLedger(p plan, broker *model.Broker) *ledger {
	return &ledger{plan: p, began: time.Now(), broker: broker, letters: map[string]*letter{},
		byKey: map[string][]*letter{}, lastCall: map[string]time.Time{}, redrives: map[string]int{},
		outages: map[handlerIn]*outage{}, stood: map[string]time.Time{},
		lastOf: map[string]time.Time{}}
}

// violated notes a violation, about a message or about none.
func (l *ledger) violated(about, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violate(about, format, args...)
}

// violate is violated while mu is held.
func (l *ledger) violate(about, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.violations = append(l.violations, violation{about, text})
	l.broker.Note("VIOLATION: %s", text)
}

// published notes a message that every work queue has got.
func (l *ledger) published(id, key string, publish func() (queues int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := publish() == len(l.plan.queues())
	l.ids = append(l.ids, id)
	for _, queue := range l.plan.queues() {
		of := queue + key
		m := &letter{id: id, queue: queue, key: key, number: len(l.byKey[of]), published: time.Now(), due: time.Now(),
			states: map[state]*visit{}, finished: !all}
		m.at(state{}).due = time.Now()
		l.letters[queue+id] = m
		if all {
			l.byKey[of] = append(l.byKey[of], m)
		}
		if !all { // it may have been routed to one of them
			m.key = ""
		}
	}
}

// at returns the visit of a state.
func (m *letter) at(s state) *visit {
	if m.states[s] == nil {
		m.states[s] = &visit{}
	}
	return m.states[s]
}

// called notes a call, with the limits that it has from its breaker, and reports whether it is the first one of the
// message. The flight is nil for a stranger.
func (l *ledger) called(p *process, queue string, msg *message.Message, r retry.Record, is limits) (bool, *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := string(msg.Payload)
	l.broker.Note("process %d: %s calls for %s after %d failures, %d snoozes", p.number, queue, id, r.Failures,
		r.Snoozes)
	m := l.letters[queue+id]
	if m == nil {
		l.violate(id, "a stranger in %s: %q", queue, id)
		return true, nil
	}
	m.inCall++
	f := &flight{process: p, from: time.Now(), called: true, state: state{r.Failures, r.Snoozes},
		probe: is.probe}
	l.endWait(m, f)
	m.flights = append(m.flights, f)
	l.awaitsAck(p, f, msg)
	if p.dead.Load() {
		return m.calls == 0, f
	}
	l.lastCall[queue] = time.Now()
	l.lastOf[queue+m.key] = time.Now()
	m.calls++
	l.same(m, msg)
	v := m.at(state{r.Failures, r.Snoozes})
	v.calls++
	l.inTime(m, v, r)
	l.inOrder(m)
	l.remembers(m, r)
	l.double(m, v, r)
	if is.handler { // its keys are as new
		l.forgetOutages(p, queue)
	}
	l.isProbe(p, m)
	return m.calls == 1, f
}

// endWait ends the hold of a message that was to wait for its key: where no tier takes it, its handler is called.
func (l *ledger) endWait(m *letter, call *flight) {
	for _, f := range m.flights {
		if f.process == call.process && f.state == call.state && !f.called && f.held {
			f.settled, f.held = call.from, false
			f.process.holding(m.queue, -1)
		}
	}
}

// awaitsAck notes when a message is acked or nacked whose handler produces another one. Its outcome is reported before
// that one is published, and its ack waits for the confirm of that.
func (l *ledger) awaitsAck(p *process, f *flight, msg *message.Message) {
	if f.produce = l.plan.produces; !f.produce {
		return
	}
	go func() {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
		case <-p.done:
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		f.over = time.Now()
	}()
}

// ended notes the end of a call.
func (l *ledger) ended(p *process, queue, id string, record retry.Record, err error, f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[queue+id]
	if m == nil {
		return
	}
	f.ended, f.down = time.Now(), isDownErr(err)
	m.inCall--
	l.sent(m, record, err, f.lost())
	l.decides(p, m, err)
	if p.dead.Load() {
		return
	}
	switch {
	case err == nil:
		m.succeeded++
		m.finished = true
	case err == errStale:
		m.discarded++
		m.finished = true
	case l.last(m, record, err):
		m.finished = true
	}
}

// last reports whether a failure is the last one of its message.
func (l *ledger) last(m *letter, record retry.Record, err error) bool {
	once := err == errInvalid || err != nil && !isDownErr(err) && l.plan.fate(m.id).how == permanent
	return once || err != errBusy && err != errNotHere && record.Failures == len(l.plan.schedule)
}

// disturbed notes that a fault begins, or ends, that lasts so long.
func (l *ledger) disturbed(lasts time.Duration) {
	l.faults.Lock()
	defer l.faults.Unlock()
	l.calm = latest(l.calm, time.Now().Add(lasts))
	l.handedOver.Store(0)
}

// purged notes that an operator has purged a message. Of a tier of several work queues, its routing key has the queue.
func (l *ledger) purged(queue, id, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range l.plan.queues() {
		if m := l.letters[of+id]; m != nil && (of == queue || strings.HasSuffix(key, "."+of)) {
			m.purged, m.finished = true, true
		}
	}
}

// alarmed notes since when there is an alarm.
func (l *ledger) alarmed(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alarm = since
}

// excused returns until when a fault excuses what does not go on.
func (l *ledger) excused() (calm time.Time) {
	l.faults.Lock()
	defer l.faults.Unlock()
	return l.calm
}

func latest(times ...time.Time) (last time.Time) {
	for _, at := range times {
		if at.After(last) {
			last = at
		}
	}
	return last
}
