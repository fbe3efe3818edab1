package main

import (
	"fmt"
	"net"
	"net/rpc"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Call is what a process tells the ledger before its handler does something, and once more with its effect. It waits
// for the answer, so that the order in which the ledger sees them is that in which they happen.
type Call struct {
	Identity         string
	Failures         int
	Process, Session int
}

// An Answer is what the handler is to do.
type Answer struct {
	Nack   bool
	Work   time.Duration // before it ends
	Outage bool          // it fails, as all do
	Fails  bool
	Wait   time.Duration // it fails, and wants to be called again after it
	Dead   bool          // it fails for good, after its effect
}

// A Move is a copy in another queue, which the broker has confirmed.
type Move struct {
	Identity, Queue string
	Wait            time.Duration
	Dead            bool
}

// ledger records what happened to every message, by its identity, in all processes.
type ledger struct {
	Options
	ordered  bool // the processes keep the order of keys
	listener net.Listener

	slow    atomic.Int64                              // additional working time of handlers
	down    atomic.Bool                               // handlers fail
	hang    [workQueues]atomic.Pointer[chan struct{}] // the next handler that is called waits until it is closed
	nacks   atomic.Int64                              // how many messages are to be nacked
	refused [workQueues]atomic.Int64                  // attempts to publish a copy that failed
	leaks   atomic.Bool                               // a process had goroutines left

	mu        sync.Mutex
	messages  map[string]*fate
	deleted   []deletion
	healed    [workQueues]time.Time // the end of the last fault; zero after a message was processed since
	recovered time.Duration
	over      bool      // a fault has reported its end
	active    time.Time // the last event
	sequences
}

// fate is what happened to a message.
type fate struct {
	published       bool // confirmed
	processed, dead int
	failing         bool  // its handler fails, or has failed, and the copy is not confirmed
	last            place // where it was last known to be
}

type place struct {
	queue string
	at    time.Time
	due   time.Time // when it leaves a tier for the work queue
}

// A confirm is recorded a little after the message has arrived.
const clock = 50 * time.Millisecond

type deletion struct {
	queue      string
	begin, end time.Time
	count      int // the ready messages, as counted by the broker
	// the other messages that may have been in it, delivered or on their way back; the broker does not count them
	unsettled int
}

// newLedger returns a ledger that serves processes.
func newLedger(o Options, ordered bool) (*ledger, error) {
	l := &ledger{Options: o, ordered: ordered, messages: map[string]*fate{}, sequences: newSequences()}
	server := rpc.NewServer()
	err := server.RegisterName("ledger", l)
	if err == nil {
		l.listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			connection, err := l.listener.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(connection) // it ends with the process
		}
	}()
	return l, nil
}

func (l *ledger) close() { _ = l.listener.Close() }

// at returns the fate of a message. The lock is held.
func (l *ledger) at(identity string) *fate {
	m := l.messages[identity]
	if m == nil {
		m = &fate{}
		l.messages[identity] = m
	}
	return m
}

func (l *ledger) confirmed(identity, queue string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.at(identity)
	m.published = true
	if m.last.queue == "" { // the handler may run before the confirm arrives
		m.last = place{queue: queue, at: time.Now()}
	}
}

// Called tells a handler what it is to do.
func (l *ledger) Called(c Call, told *Answer) error {
	if !l.ordered {
		if hang := l.hang[queueOf(c.Identity)].Swap(nil); hang != nil {
			<-*hang
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ordered {
		*told = l.inOrder(c)
	} else {
		*told = l.tell(c)
	}
	l.at(c.Identity).failing = told.Fails || told.Dead
	return nil
}

// tell lets a message fail 0 to 3 times, depending on its identity. One message in 50 fails permanently. The work takes
// so long that messages are always in flight.
func (l *ledger) tell(c Call) Answer {
	n, err := strconv.Atoi(c.Identity)
	return Answer{
		Work:   time.Duration(20+n%60)*time.Millisecond + time.Duration(l.slow.Load()),
		Outage: l.down.Load(), Fails: c.Failures < n%4 && n%50 != 7, Dead: err != nil || l.dies(c.Identity),
	}
}

// dies reports whether a message is to be dead-lettered.
func (l *ledger) dies(identity string) bool {
	if l.ordered {
		return luck(identity)%250 == 7
	}
	n, _ := strconv.Atoi(identity)
	return n%50 == 7
}

// Handled counts the effect of a handler. Without an order, a message that is dead-lettered has none.
func (l *ledger) Handled(c Call, _ *bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ordered {
		l.effect(c)
		return nil
	}
	if l.dies(c.Identity) {
		return nil
	}
	l.at(c.Identity).processed++
	l.active = time.Now()
	if healed := &l.healed[queueOf(c.Identity)]; !healed.IsZero() {
		l.recovered = max(l.recovered, l.active.Sub(*healed))
		*healed = time.Time{}
	}
	return nil
}

// Moved records that the broker has confirmed a copy in another queue.
func (l *ledger) Moved(to Move, _ *bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active = time.Now()
	m := l.at(to.Identity)
	m.failing, m.last = false, place{queue: to.Queue, at: l.active, due: l.active.Add(to.Wait)}
	if to.Dead {
		m.dead++
	}
	return nil
}

// Refused counts an attempt to publish a copy that failed.
func (l *ledger) Refused(which int, _ *bool) error { l.refused[which].Add(1); return nil }

// Leaks records that a process had goroutines left at its end.
func (l *ledger) Leaks(int, *bool) error { l.leaks.Store(true); return nil }

// count returns how many messages of a work queue have such a fate.
func (l *ledger) count(which int, is func(*fate) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for identity, m := range l.messages {
		if queueOf(identity) == which && is(m) {
			n++
		}
	}
	return n
}

func (m *fate) isProcessed() bool { return m.processed > 0 }

func (m *fate) isFailing() bool { return m.failing }

func (l *ledger) queueDeleted(d deletion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.end = time.Now()
	l.deleted = append(l.deleted, d)
}

func (l *ledger) deletions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.deleted)
}

// heal records that a fault, or one of several in a row, is over. The longest time until a message is processed counts.
func (l *ledger) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for which := range l.healed {
		l.healed[which] = time.Now()
	}
}

func (l *ledger) marked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// open counts the messages that are neither processed nor dead.
func (l *ledger) open() (open int, quiet time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.messages {
		if m.published && m.processed == 0 && m.dead == 0 {
			open++
		}
	}
	return open, time.Since(l.active)
}

// settle compares the ledger with the messages that are left in the queues. It fills in the row, and returns what is
// wrong, the first of it.
func (l *ledger) settle(row *Row, c appConfig, dead, waiting map[string]int) (wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	note := func(format string, arguments ...any) {
		if len(wrong) < 20 {
			wrong = append(wrong, fmt.Sprintf(format, arguments...))
		}
	}
	row.Dead, row.Recovered, row.Leaked = len(dead), l.recovered, l.leaks.Load()
	allowed := 0
	for _, d := range l.deleted {
		allowed += d.count + d.unsettled
	}
	for identity, m := range l.messages {
		if m.processed > 0 {
			row.Processed++
		}
		if !m.published {
			continue
		}
		row.Published++
		switch ends := m.processed + dead[identity]; {
		case l.ordered && m.processed > 0 && (dead[identity] > 0 || !l.dies(identity)):
		case !l.ordered && ends > 1:
			row.Duplicates++
		case !l.ordered && ends > 0:
		case waiting[identity] > 0:
			row.Waiting++
		case l.cameDuring(identity): // the broker counts before it deletes
			row.Destroyed++
		case allowed > 0 && l.wasIn(identity, c.queue(queueOf(identity))):
			row.Destroyed++
			allowed--
		default:
			row.Lost++
			note("lost: %s last seen in %s at %s", identity, m.last.queue, m.last.at.Format("15:04:05.000"))
		}
	}
	if l.ordered {
		l.countOrder(row, note)
	}
	if row.Lost > 0 || row.Stuck {
		for _, d := range l.deleted {
			wrong = append(wrong, fmt.Sprintf("deleted %s at %s with %d", d.queue, d.end.Format("15:04:05.000"), d.count))
		}
	}
	return wrong
}

// cameDuring reports whether the message came into a queue while it was being deleted.
func (l *ledger) cameDuring(identity string) bool {
	p := l.messages[identity].last
	for _, d := range l.deleted {
		if p.queue == d.queue && p.at.After(d.begin) && p.at.Before(d.end.Add(clock)) {
			return true
		}
	}
	return false
}

// wasIn reports whether the message was, as far as the ledger shows, in a queue when that was deleted.
func (l *ledger) wasIn(identity, workQueue string) bool {
	p := l.messages[identity].last
	for _, d := range l.deleted {
		inThere := p.queue == d.queue || d.queue == workQueue && !p.due.IsZero() && p.due.Before(d.end.Add(clock))
		if inThere && p.at.Before(d.end.Add(clock)) {
			return true
		}
	}
	return false
}
