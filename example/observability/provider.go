//go:build unix

package main

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// watched is the number of the order whose trace is shown: it dies, and is brought back at the end.
const watched = 7

type order struct {
	Number int `json:"number"`
	Cents  int `json:"cents"`
}

func (o order) id() string { return fmt.Sprintf("order-%d", o.Number) }

// provider is the payment provider. Some orders have a fault of their own, and all fail while it is away.
type provider struct {
	away     atomic.Bool
	repaired atomic.Bool // the locked accounts
	calls    sync.Map    // the number of calls, by order number
}

func (p *provider) charge(o order) error {
	time.Sleep(time.Duration(10+o.Number*7%40) * time.Millisecond) // the work
	if p.away.Load() {
		return errors.New("the payment provider answers 503 Service Unavailable")
	}
	count, _ := p.calls.LoadOrStore(o.Number, new(atomic.Int64))
	call := count.(*atomic.Int64).Add(1)
	switch {
	case o.Number%25 == 0:
		return backoff.Permanent(fmt.Errorf("the card of order %d was declined", o.Number))
	case o.Number%20 == watched && !p.repaired.Load():
		return fmt.Errorf("the account of order %d is locked", o.Number)
	case o.Number%10 == 3 && call == 1:
		return errors.New("the payment provider did not answer within 50ms")
	case o.Number%15 == 5 && call <= 2:
		return errors.New("the payment provider answers 500 Internal Server Error")
	}
	p.calls.Delete(o.Number)
	return nil
}

// journal counts the outcomes, outside of the metrics: at the end both must be equal.
type journal struct {
	mu        sync.Mutex
	sent      int // orders, and letters that were redriven
	outcomes  map[retry.Outcome]int
	ofWatched map[retry.Outcome]int
}

func newJournal() *journal {
	return &journal{outcomes: map[retry.Outcome]int{}, ofWatched: map[retry.Outcome]int{}}
}

// Event is the Observe function of the retry middleware.
func (j *journal) Event(e retry.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outcomes[e.Outcome]++
	if e.MessageUUID == (order{Number: watched}).id() {
		j.ofWatched[e.Outcome]++
	}
}

func (j *journal) send(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sent += n
}

// counts returns all outcomes, and those of the watched order.
func (j *journal) counts() (all, ofWatched map[retry.Outcome]int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.outcomes), maps.Clone(j.ofWatched)
}

// open returns how many orders are neither billed nor dead.
func (j *journal) open() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	billed := j.outcomes[retry.Processed] + j.outcomes[retry.Recovered]
	return j.sent - billed - j.outcomes[retry.DeadLettered]
}
