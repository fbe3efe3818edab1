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

// bill is the handler. It returns an error and is done: it knows nothing of retries, queues or metadata.
func (p *provider) bill(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return backoff.Permanent(fmt.Errorf("this is no order: %w", err)) // it will not become one
	}
	return p.charge(o)
}

// provider stands in for a payment provider: what goes wrong is scripted by order number.
type provider struct {
	script []trouble // of order 1, order 2, ...
	wish   time.Duration

	mu    sync.Mutex
	calls map[int]int // by order number
}

// newProvider takes a wish that no tier can wait out in one go: the message goes back on a tier until it is due.
func newProvider(orders int, schedule backoff.Schedule) *provider {
	tiers := schedule.Tiers()
	return &provider{
		script: script(orders, len(schedule)),
		wish:   time.Duration(tiers[len(tiers)-1] + tiers[0]),
		calls:  map[int]int{},
	}
}

func (p *provider) charge(o order) error {
	if o.Number < 1 || o.Number > len(p.script) {
		return backoff.Permanent(fmt.Errorf("there is no order %d", o.Number))
	}
	p.mu.Lock()
	p.calls[o.Number]++
	call := p.calls[o.Number]
	p.mu.Unlock()

	trouble := p.script[o.Number-1]
	if call > trouble.failures && trouble.failures != always {
		return nil
	}
	switch trouble.kind {
	case declined:
		return backoff.Permanent(declinedError{o.Number})
	case busy:
		return backoff.RetryAfter(fmt.Errorf("rate limit reached, come back in %v", p.wish), p.wish)
	case bug:
		panic("no exchange rate for today")
	case broken:
		return errors.New("the provider answers 500 for this account")
	default:
		return errors.New("no answer from the provider")
	}
}

type declinedError struct{ order int }

func (e declinedError) Error() string {
	return fmt.Sprintf("the card of order %d was reported stolen", e.order)
}

// trouble is what goes wrong with an order, and how often before it is billed.
type trouble struct {
	kind     kind
	failures int
}

type kind int

const (
	silent   kind = iota // no answer
	declined             // no retry can help: backoff.Permanent
	busy                 // says when to come back: backoff.RetryAfter
	bug                  // the handler panics
	broken               // fails every time
)

const always = -1

// script says what goes wrong with each order. Of few orders the first roles are played; of many, a quarter has trouble. An
// order that is to be billed in the end fails no more often than there are retries.
func script(orders, retries int) []trouble {
	roles := []trouble{
		{silent, 1},
		{broken, always},
		{declined, always},
		{busy, 1},
		{bug, 1},
		{silent, min(2, retries)},
	}
	for len(roles) < orders/4 {
		roles = append(roles, trouble{silent, min(1+len(roles)%2, retries)})
	}
	roles = roles[:min(len(roles), orders)]

	all := make([]trouble, orders)
	for i, role := range roles {
		all[i*orders/len(roles)] = role
	}
	return all
}

// newOrders are the messages of so many orders, numbered from 1.
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
