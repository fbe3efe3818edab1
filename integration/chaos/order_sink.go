package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/rpc"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// A Call is what a process tells the sink before its handler does something, and once more with its effect. It waits
// for the answer, so that the order in which the sink sees them is that in which they happen.
type Call struct {
	Key              string
	N                int
	Process, Session int
	Effect           bool
}

// An Answer is what the handler is to do.
type Answer struct {
	Nack bool
	Wait time.Duration // fails, and wants to be called again after it
	Work time.Duration // before the effect
	Dead bool          // fails for good after it
}

// owner is a session of a partition.
type owner struct{ process, session int }

// sink counts the effects of all processes.
type sink struct {
	short    bool
	listener net.Listener
	nacks    atomic.Int64 // how many messages are to be nacked

	mu         sync.Mutex
	keys       map[string]*keyOfSink
	partitions [partitions]partitionOfSink
	heldKey    string // waits until
	heldUntil  time.Time
	changes    int // sessions of partitions
	rewinds    int
	stale      int
	active     time.Time // the last effect
	stood      time.Duration
}

type partitionOfSink struct {
	owner   owner
	deposed map[owner]bool // another session has had a call since
}

type keyOfSink struct {
	published int // all below
	effects   map[int]int
	failed    map[int]bool
	next      int           // one after the last effect
	running   map[owner]int // the call of a session; absent: none
	ahead     []step
	overlaps  []string
}

// A step goes from next to a later message.
type step struct {
	next, to int
	by       owner
}

func newSink(l *Load) (*sink, error) {
	s := &sink{short: l.Short, keys: map[string]*keyOfSink{}}
	for i := range s.partitions {
		s.partitions[i].deposed = map[owner]bool{}
	}
	server := rpc.NewServer()
	err := server.RegisterName("sink", s)
	if err == nil {
		s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			connection, err := s.listener.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(connection) // it ends with the process
		}
	}()
	return s, nil
}

// Called serves the processes.
func (s *sink) Called(c Call, told *Answer) error {
	*told = s.called(c)
	return nil
}

func (s *sink) close() { _ = s.listener.Close() }

func (s *sink) key(key string) *keyOfSink {
	k := s.keys[key]
	if k == nil {
		k = &keyOfSink{effects: map[int]int{}, failed: map[int]bool{}, running: map[owner]int{}}
		s.keys[key] = k
	}
	return k
}

func (s *sink) confirmed(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key(key).published = n + 1
}

// called counts a call or its effect.
func (s *sink) called(c Call) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, by := s.key(c.Key), owner{c.Process, c.Session}
	stale := s.isStale(naming.PartitionOf(c.Key, partitions), by)
	if stale {
		s.stale++
	} else if c.N > k.next { // of an effect, too: its message may have been the next one when it was called
		k.step(c.N, by)
	}
	if c.Effect {
		if !stale {
			s.effect(k, c.N)
			delete(k.running, by)
		}
		return Answer{}
	}
	told := s.tell(k, c)
	if n, runs := k.running[by]; runs && !stale {
		k.overlaps = append(k.overlaps, fmt.Sprintf("%d was called while %d ran", c.N, n))
	}
	if !told.Nack && told.Wait == 0 {
		k.running[by] = c.N
	}
	return told
}

// isStale reports whether a session has lost its partition: another one has had a call since.
func (s *sink) isStale(partition int, by owner) bool {
	p := &s.partitions[partition]
	if p.owner != by && !p.deposed[by] {
		p.deposed[p.owner] = true
		p.owner = by
		s.changes++
	}
	return p.owner != by
}

func (k *keyOfSink) step(to int, by owner) {
	if last := len(k.ahead) - 1; last < 0 || k.ahead[last] != (step{k.next, to, by}) {
		k.ahead = append(k.ahead, step{k.next, to, by})
	}
}

func (s *sink) effect(k *keyOfSink, n int) {
	now := time.Now()
	if !s.active.IsZero() {
		s.stood = max(s.stood, now.Sub(s.active))
	}
	s.active = now
	if n < k.next {
		s.rewinds++
	}
	k.next = n + 1
	k.effects[n]++
}

// tell decides what a handler is to do: 5 % of the messages fail once, and 0.4 % for good.
func (s *sink) tell(k *keyOfSink, c Call) Answer {
	if s.nacks.Load() > 0 {
		s.nacks.Add(-1)
		return Answer{Nack: true}
	}
	if wait := time.Until(s.heldUntil); wait > 0 && (s.heldKey == "" || s.heldKey == c.Key) {
		s.heldKey = c.Key
		return Answer{Wait: wait}
	}
	chance := luck(c)
	if chance%20 == 0 && !k.failed[c.N] {
		k.failed[c.N] = true
		wait := time.Second + rand.N(4*time.Second)
		if s.short {
			wait /= 10
		}
		return Answer{Wait: wait}
	}
	return Answer{Work: rand.N(50 * time.Millisecond), Dead: chance%250 == 7}
}

// luck is a number that looks random, the same for each call of a message.
func luck(c Call) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(orderIdentity(c.Key, c.N)))
	return hash.Sum32() >> 4
}

// hold makes the next message wait. It returns how many sessions there were.
func (s *sink) hold(wait time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heldUntil = time.Now().Add(wait)
	return s.changes
}

// sessions is how many sessions of partitions there were.
func (s *sink) sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// owner returns the process with the most partitions.
func (s *sink) owner() (process int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := map[int]int{}
	for _, p := range s.partitions {
		if own[p.owner.process]++; own[p.owner.process] > own[process] {
			process = p.owner.process
		}
	}
	return process
}

// owns reports whether a process has had the last call of a partition.
func (s *sink) owns(process int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.partitions {
		if p.owner.process == process {
			return true
		}
	}
	return false
}

// open returns how many messages have no effect, and since when there was none.
func (s *sink) open() (open int, quiet time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		open += k.published - len(k.effects)
	}
	return open, time.Since(s.active)
}

// count fills in the row, and returns what is wrong, the first of it.
func (s *sink) count(row *Row, dead map[string]int) (wrong []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note := func(format string, arguments ...any) {
		if len(wrong) < 20 {
			wrong = append(wrong, fmt.Sprintf(format, arguments...))
		}
	}
	row.Ordered, row.Dead, row.Rewinds, row.StaleCalls = true, len(dead), s.rewinds, s.stale
	row.Sessions, row.Stood = s.changes, s.stood
	for key, k := range s.keys {
		row.Published += k.published
		row.Processed += len(k.effects)
		for n := range k.published {
			identity := orderIdentity(key, n)
			dies := luck(Call{Key: key, N: n})%250 == 7
			if k.effects[n] == 0 || dies && dead[identity] == 0 {
				row.Lost++
				note("lost: %s", identity)
			}
		}
		for _, of := range k.ahead {
			missing := false
			for n := of.next; n < of.to; n++ {
				missing = missing || k.effects[n] == 0
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
	return wrong
}
