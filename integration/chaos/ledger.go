package main

import (
	"sync"
	"sync/atomic"
	"time"
)

// Ledger records what happened to every message, by its identity.
type Ledger struct {
	slow atomic.Int64                              // additional working time of handlers
	down atomic.Bool                               // handlers fail
	hang [workQueues]atomic.Pointer[chan struct{}] // the next handler that is called waits until it is closed

	mu        sync.Mutex
	published map[string]time.Time // when its publish was confirmed
	processed map[string]int       // how often a handler has processed it
	dead      map[string]int       // how often it was dead-lettered
	last      map[string]place     // where it was last known to be
	deleted   []deletion
	healed    [workQueues]time.Time // the end of the last fault; zero after a message was processed since
	recovered time.Duration
	over      bool      // a fault has reported its end
	active    time.Time // the last event
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

func newLedger() *Ledger {
	return &Ledger{published: map[string]time.Time{}, processed: map[string]int{}, dead: map[string]int{},
		last: map[string]place{}}
}

func (l *Ledger) extra() time.Duration { return time.Duration(l.slow.Load()) }

func (l *Ledger) disturb(identity string) error {
	if hang := l.hang[queueOf(identity)].Swap(nil); hang != nil {
		<-*hang
	}
	if l.down.Load() {
		return errOutage
	}
	return nil
}

func (l *Ledger) confirmed(identity, queue string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.published[identity] = now
	if _, moved := l.last[identity]; !moved { // the handler may run before the confirm arrives
		l.last[identity] = place{queue: queue, at: now}
	}
}

// done is how many messages of a work queue are processed.
func (l *Ledger) done(which int) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for identity := range l.processed {
		if queueOf(identity) == which {
			n++
		}
	}
	return n
}

func (l *Ledger) handled(identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processed[identity]++
	l.active = time.Now()
	if healed := &l.healed[queueOf(identity)]; !healed.IsZero() {
		l.recovered = max(l.recovered, l.active.Sub(*healed))
		*healed = time.Time{}
	}
}

// moved records that the broker has confirmed a copy in another queue.
func (l *Ledger) moved(identity, queue string, wait time.Duration, dead bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active = time.Now()
	l.last[identity] = place{queue: queue, at: l.active, due: l.active.Add(wait)}
	if dead {
		l.dead[identity]++
	}
}

func (l *Ledger) queueDeleted(d deletion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.end = time.Now()
	l.deleted = append(l.deleted, d)
}

func (l *Ledger) deletions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.deleted)
}

// heal records that a fault, or one of several in a row, is over. The longest time until a message is processed counts.
func (l *Ledger) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for which := range l.healed {
		l.healed[which] = time.Now()
	}
}

func (l *Ledger) marked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// open counts the messages that are neither processed nor dead.
func (l *Ledger) open() (open int, quiet time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for identity := range l.published {
		if l.processed[identity] == 0 && l.dead[identity] == 0 {
			open++
		}
	}
	return open, time.Since(l.active)
}

// settle compares the ledger with the messages that are left in the queues and fills in the row.
func (l *Ledger) settle(row *Row, c appConfig, dead, waiting map[string]int) (missing []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	row.Published, row.Processed, row.Dead = len(l.published), len(l.processed), len(dead)
	allowed := 0
	for _, d := range l.deleted {
		allowed += d.count + d.unsettled
	}
	for identity := range l.published {
		processed := l.processed[identity]
		switch {
		case processed > 1 || dead[identity] > 1 || processed > 0 && dead[identity] > 0:
			row.Duplicates++
		case processed > 0 || dead[identity] > 0:
		case waiting[identity] > 0:
			row.Waiting++
		case l.cameDuring(identity): // the broker counts before it deletes
			row.Destroyed++
		case allowed > 0 && l.wasIn(identity, c.queue(queueOf(identity))):
			row.Destroyed++
			allowed--
		default:
			row.Lost++
			missing = append(missing, identity)
		}
	}
	row.Recovered = l.recovered
	return missing
}

// cameDuring reports whether the message came into a queue while it was being deleted.
func (l *Ledger) cameDuring(identity string) bool {
	p := l.last[identity]
	for _, d := range l.deleted {
		if p.queue == d.queue && p.at.After(d.begin) && p.at.Before(d.end.Add(clock)) {
			return true
		}
	}
	return false
}

// wasIn reports whether the message was, as far as the ledger shows, in a queue when that was deleted.
func (l *Ledger) wasIn(identity, workQueue string) bool {
	p := l.last[identity]
	for _, d := range l.deleted {
		inThere := p.queue == d.queue || d.queue == workQueue && !p.due.IsZero() && p.due.Before(d.end.Add(clock))
		if inThere && p.at.Before(d.end.Add(clock)) {
			return true
		}
	}
	return false
}
