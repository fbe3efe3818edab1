package main

import (
	"fmt"
	"slices"
)

const (
	keys   = 2
	perKey = 3
	owners = 3
)

// An item is a message: its number from 0, perKey for each key. A copy that has come back from a tier is marked.
type item int8

const (
	none   item = -1
	isCopy item = 8
)

func (i item) id() item    { return i &^ isCopy }
func (i item) key() int    { return int(i.id()) / perKey }
func (i item) place() int8 { return int8(i.id())%perKey + 1 }
func (i item) bit() int8   { return 1 << i.id() }

func (i item) String() string { return fmt.Sprintf("%c%d", 'a'+rune(i.key()), i.place()) }

// messageOf returns the message at a place of a key.
func messageOf(key int, place int8) item { return item(key*perKey) + item(place) - 1 }

// A queue is an array, so that a world can be compared and copied. A push onto a full one panics.
type queue struct {
	n int8
	a [12]item
}

func (q *queue) items() []item { return q.a[:q.n] }
func (q *queue) full() bool    { return int(q.n) == len(q.a) }
func (q *queue) push(i item)   { q.a[q.n] = i; q.n++ }

func (q *queue) remove(at int8) item {
	i := q.a[at]
	copy(q.a[at:], q.a[at+1:])
	q.n--
	q.a[q.n] = 0
	return i
}

func (q *queue) first() item {
	if q.n == 0 {
		return none
	}
	return q.a[0]
}

// take removes an item, if the queue has it.
func (q *queue) take(i item) {
	if at := slices.Index(q.items(), i); at >= 0 {
		q.remove(int8(at))
	}
}

func (q *queue) drainInto(to *queue) {
	for q.n > 0 {
		to.push(q.remove(0))
	}
}

// has reports whether a message, or a copy of it, is in the queue.
func (q *queue) has(i item) bool {
	return slices.ContainsFunc(q.items(), func(other item) bool { return other.id() == i.id() })
}

// life is the state of an owner.
type life int8

const (
	unborn life = iota
	active
	zombie
	draining // after basic.cancel
	gone
)

// phase is the state of a key within its owner.
type phase int8

const (
	idle      phase = iota
	running         // the handler has the first message
	waiting         // the delay after a failure
	copying         // it publishes a copy to the tier
	copied          // it waits for the confirm of the copy
	lettering       // it publishes the dead letter, which the key skips
	lettered        // it waits for the confirm of the dead letter
	blocked         // an operator decides
)

type owner struct {
	life life
	q    [keys]queue // what it has been sent, in the order of arrival
	at   [keys]phase
	acks queue // sent, and not yet at the broker
	// Only where it publishes copies: the waiting head of a key plus 1, and how many copies of the key are on the tier.
	head, copies [keys]int8
}

type world struct {
	published int8 // of variant.order
	active    int8 // the owner that the queue feeds

	ready, returned  queue
	unacked          queue // of the active consumer
	canceled         queue // unacked of the consumer that was canceled
	tier             queue
	forwarded        int8  // by the dead-letter worker of the tier, and not settled
	refused          queue // refused by the work queue: the worker sends them again later
	o                [owners]owner
	ledgerHead       [keys]int8 // owner.head and owner.copies, where a ledger has them
	ledgerCopies     [keys]int8
	done, skipped    int8       // a bit for each message: it has had an effect, it is a dead letter
	latest, latestBy [keys]int8 // the place of the newest effect, and its owner

	may budget
}

// A budget is what may still happen.
type budget struct {
	failures, fatal int8
	faults          int8 // of the active owner
	worker          int8 // restarts of the dead-letter worker, or refused copies
	retries, skips  int8 // by the operator
}
