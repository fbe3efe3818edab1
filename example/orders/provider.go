package orders

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

type order struct {
	Number int `json:"number"`
	Cents  int `json:"cents"`
}

// bill is the handler. It only returns an error. It contains no code for retries, queues or metadata.
func (p *provider) bill(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return backoff.Permanent(fmt.Errorf("not an order: %w", err)) // a retry would not change that
	}
	return p.charge(o)
}

// provider simulates a payment provider.
type provider struct {
	troubles map[int]trouble // the troubles, by order number
	delay    time.Duration   // the requested delay of a busy provider

	mu    sync.Mutex
	calls map[int]int // the number of calls, by order number
}

// newProvider requests a delay that is longer than any tier: the message waits on tiers several times until it is due.
// An order that is billed in the end fails no more often than there are retries.
func newProvider(schedule backoff.Schedule) *provider {
	tiers, twice := schedule.Tiers(), min(2, len(schedule))
	return &provider{
		troubles: map[int]trouble{
			1: {silent, 1}, 5: {broken, always}, 9: {declined, always}, 13: {busy, 1}, 17: {bug, 1},
			21: {silent, twice}, 25: {silent, 1}, 29: {silent, twice}, 33: {silent, 1}, 37: {silent, twice},
		},
		delay: time.Duration(tiers[len(tiers)-1] + tiers[0]),
		calls: map[int]int{},
	}
}

func (p *provider) charge(o order) error {
	if o.Number < 1 || o.Number > howMany {
		return backoff.Permanent(fmt.Errorf("order %d does not exist", o.Number))
	}
	p.mu.Lock()
	p.calls[o.Number]++
	call := p.calls[o.Number]
	p.mu.Unlock()

	trouble := p.troubles[o.Number]
	if call > trouble.failures && trouble.failures != always {
		return nil
	}
	switch trouble.kind {
	case declined:
		return backoff.Permanent(fmt.Errorf("the card of order %d was reported stolen", o.Number))
	case busy:
		return backoff.RetryAfter(fmt.Errorf("rate limit reached, retry after %v", p.delay), p.delay)
	case bug:
		panic("no exchange rate for today")
	case broken:
		return errors.New("the provider answers 500 for this account")
	default:
		return errors.New("no answer from the provider")
	}
}

// trouble is what goes wrong with an order, and how often it fails before it is billed.
type trouble struct {
	kind     kind
	failures int
}

type kind int

const (
	silent   kind = iota // no answer
	declined             // no retry can solve it: backoff.Permanent
	busy                 // requests a delay: backoff.RetryAfter
	bug                  // the handler panics
	broken               // fails every time
)

const always = -1

// newOrders returns the messages of n orders, numbered from 1.
func newOrders(n int) ([]*message.Message, error) {
	all := make([]*message.Message, n)
	for i := range all {
		payload, err := json.Marshal(order{Number: i + 1, Cents: 1999 + 100*i})
		if err != nil {
			return nil, err
		}
		all[i] = message.NewMessage(watermill.NewUUID(), payload)
	}
	return all, nil
}
