package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// The identity of a message with a key is KEY/NUMBER.

func orderIdentity(key string, n int) string { return key + "/" + strconv.Itoa(n) }

func keyOf(identity string) string { key, _, _ := strings.Cut(identity, "/"); return key }

func orderNumber(identity string) int {
	_, number, _ := strings.Cut(identity, "/")
	n, _ := strconv.Atoi(number)
	return n
}

// owner is a session of a partition.
type owner struct{ process, session int }

// sequences is what a ledger knows of the order of messages. The ledger's lock guards it.
type sequences struct {
	keys       map[string]*sequence
	partitions [partitions]ownership
	heldKey    string // waits until
	heldUntil  time.Time
	changes    int // sessions of partitions
	rewinds    int
	stale      int
	stood      time.Duration
}

// ownership is who has had the calls of a partition.
type ownership struct {
	owner   owner
	deposed map[owner]bool // another session has had a call since
}

// sequence is what is known of the order of a key.
type sequence struct {
	failed   map[int]bool
	next     int           // one after the last effect
	running  map[owner]int // the call of a session; absent: none
	ahead    []step
	overlaps []string
}

// A step goes from next to a later message.
type step struct {
	next, to int
	by       owner
}

func newSequences() sequences {
	s := sequences{keys: map[string]*sequence{}}
	for i := range s.partitions {
		s.partitions[i].deposed = map[owner]bool{}
	}
	return s
}

// seen returns the sequence of a call, or of its effect, and whether its session has lost the partition.
func (s *sequences) seen(c Call) (k *sequence, n int, by owner, stale bool) {
	key := keyOf(c.Identity)
	if k = s.keys[key]; k == nil {
		k = &sequence{failed: map[int]bool{}, running: map[owner]int{}}
		s.keys[key] = k
	}
	n, by = orderNumber(c.Identity), owner{c.Process, c.Session}
	stale = s.isStale(naming.PartitionOf(key, partitions), by)
	if stale {
		s.stale++
	} else if n > k.next { // of an effect, too: its message may have been the next one when it was called
		k.step(n, by)
	}
	return k, n, by, stale
}

// inOrder counts a call, and decides what its handler is to do.
func (l *ledger) inOrder(c Call) Answer {
	k, n, by, stale := l.seen(c)
	told := l.tellInOrder(k, c.Identity, n)
	if running, runs := k.running[by]; runs && !stale {
		k.overlaps = append(k.overlaps, fmt.Sprintf("%d was called while %d ran", n, running))
	}
	if !told.Nack && told.Wait == 0 {
		k.running[by] = n
	}
	return told
}

// effect counts the effect of a call.
func (l *ledger) effect(c Call) {
	k, n, by, stale := l.seen(c)
	if stale {
		return
	}
	delete(k.running, by)
	now := time.Now()
	if !l.active.IsZero() {
		l.stood = max(l.stood, now.Sub(l.active))
	}
	l.active = now
	if n < k.next {
		l.rewinds++
	}
	k.next = n + 1
	l.at(c.Identity).processed++
}

// isStale reports whether a session has lost its partition: another one has had a call since.
func (s *sequences) isStale(partition int, by owner) bool {
	p := &s.partitions[partition]
	if p.owner != by && !p.deposed[by] {
		p.deposed[p.owner] = true
		p.owner = by
		s.changes++
	}
	return p.owner != by
}

func (k *sequence) step(to int, by owner) {
	if last := len(k.ahead) - 1; last < 0 || k.ahead[last] != (step{k.next, to, by}) {
		k.ahead = append(k.ahead, step{k.next, to, by})
	}
}

// tellInOrder lets 5 % of the messages fail once, and 0.4 % for good.
func (l *ledger) tellInOrder(k *sequence, identity string, n int) Answer {
	if l.nacks.Load() > 0 {
		l.nacks.Add(-1)
		return Answer{Nack: true}
	}
	if wait := time.Until(l.heldUntil); wait > 0 && (l.heldKey == "" || l.heldKey == keyOf(identity)) {
		l.heldKey = keyOf(identity)
		return Answer{Wait: wait}
	}
	if luck(identity)%20 == 0 && !k.failed[n] {
		k.failed[n] = true
		wait := time.Second + rand.N(4*time.Second)
		if l.Short {
			wait /= 10
		}
		return Answer{Wait: wait}
	}
	return Answer{Work: rand.N(50 * time.Millisecond), Dead: l.dies(identity)}
}

// luck is a number that looks random, the same for each call of a message.
func luck(identity string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(identity))
	return hash.Sum32() >> 4
}

// hold makes the next message wait. It returns how many sessions there were.
func (l *ledger) hold(wait time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heldUntil = time.Now().Add(wait)
	return l.changes
}

// sessions is how many sessions of partitions there were.
func (l *ledger) sessions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// owner returns the process with the most partitions.
func (l *ledger) owner() (process int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := map[int]int{}
	for _, p := range l.partitions {
		if own[p.owner.process]++; own[p.owner.process] > own[process] {
			process = p.owner.process
		}
	}
	return process
}

// owns reports whether a process has had the last call of a partition.
func (l *ledger) owns(process int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.partitions {
		if p.owner.process == process {
			return true
		}
	}
	return false
}

// countOrder adds the order to the row.
func (l *ledger) countOrder(row *Row, note func(format string, arguments ...any)) {
	row.Ordered, row.Rewinds, row.StaleCalls = true, l.rewinds, l.stale
	row.Sessions, row.Stood = l.changes, l.stood
	for key, k := range l.keys {
		for _, of := range k.ahead {
			missing := false
			for n := of.next; n < of.to; n++ {
				missing = missing || l.at(orderIdentity(key, n)).processed == 0
			}
			if missing {
				row.Gaps++
			} else {
				row.Inversions++
			}
			note("%s: %d came in place of %d, in process %d, session %d", key, of.to, of.next, of.by.process, of.by.session)
		}
		row.Inversions += len(k.overlaps)
		for _, overlap := range k.overlaps {
			note("%s: %s", key, overlap)
		}
	}
}
