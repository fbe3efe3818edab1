//go:build unix

package main

import (
	"errors"
	"fmt"
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

	mu    sync.Mutex
	calls map[int]int
}

func (p *provider) charge(o order) error {
	time.Sleep(time.Duration(10+o.Number*7%40) * time.Millisecond) // the work
	if p.away.Load() {
		return errors.New("the payment provider answers 503 Service Unavailable")
	}
	call := p.call(o.Number)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, o.Number)
	return nil
}

// call counts the calls for an order.
func (p *provider) call(number int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[int]int{}
	}
	p.calls[number]++
	return p.calls[number]
}

// journal counts the outcomes, outside of the metrics: at the end both must be equal.
type journal struct {
	mu        sync.Mutex
	published int
	redriven  int
	outcomes  map[retry.Outcome]int
	ofWatched map[retry.Outcome]int
}

// outcome is the Observe function of the retry middleware.
func (j *journal) outcome(e retry.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outcomes[e.Outcome]++
	if e.MessageUUID == (order{Number: watched}).id() {
		j.ofWatched[e.Outcome]++
	}
}

func newJournal() *journal {
	return &journal{outcomes: map[retry.Outcome]int{}, ofWatched: map[retry.Outcome]int{}}
}

func (j *journal) send()            { j.mu.Lock(); defer j.mu.Unlock(); j.published++ }
func (j *journal) redrive(sent int) { j.mu.Lock(); defer j.mu.Unlock(); j.redriven += sent }

func (j *journal) count(outcome retry.Outcome) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.outcomes[outcome]
}

// watchedHas reports whether the watched order has had one of these outcomes.
func (j *journal) watchedHas(outcomes ...retry.Outcome) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range outcomes {
		if j.ofWatched[o] > 0 {
			return true
		}
	}
	return false
}

// state returns how many orders were billed, how many have died, and how many are neither yet. A redriven order counts again.
func (j *journal) state() (billed, dead, open int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	billed = j.outcomes[retry.Processed] + j.outcomes[retry.Recovered]
	dead = j.outcomes[retry.DeadLettered]
	return billed, dead, j.published + j.redriven - billed - dead
}
