// Package simulation runs the real code against a model of RabbitMQ in virtual time. A seed decides what the processes
// do, which faults come when, and how long everything takes. What must hold has a file each: lost.go, early.go,
// same.go, order.go, duplicates.go, standstill.go, limits.go, leaks.go, memory.go, breaker.go, tenants.go.
package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

const (
	// activity is how long messages are published and faults begin.
	activity = time.Minute
	// rest is how long the processes run after that, at most. A broker tries for the last time to forward a message that
	// a queue did not take after three minutes.
	rest = 9 * time.Minute
)

// The shapes of an app.
const (
	plain      = "plain"
	keepsOrder = "order"
	groups     = "groups"     // two handlers, each of its own consumer group
	tierGroup  = "tier group" // the same, with common tiers
	builder    = "builder"    // with watermill-amqp's subscriber
)

// plan is all that a seed decides before the run.
type plan struct {
	seed        uint64
	rules       model.Rules
	shape       string
	schedule    backoff.Schedule
	processes   int
	concurrency int
	prefetch    int // 0: the default
	partitions  int // the partitions of the order
	keys        int
	messages    int
	produces    bool // the handler produces a message for another one
	breaker     bool
	tenants     map[string]string // what is wrong with each key in an outage, with a breaker by key; nil: there is none
	share       float64           // the Share of that
	downAt      time.Duration     // when all calls begin to fail, with a breaker, or those of tenants
	down        time.Duration
	takes       time.Duration // the duration of a call, at most
	latency     time.Duration
	confirms    time.Duration
	maxHold     time.Duration // 0: 10 min
	faults      []fault
	fates       map[string]fate // the fates of the messages, by their ids
}

// planOf draws the plan of a seed. A choice that is added later changes the plans of few seeds.
func planOf(seed uint64) plan {
	p := plan{seed: seed}
	p.rules = draw(p, "rules", model.Versions...)
	p.shape = drawWeighted(p, "shape", map[string]int{plain: 5, keepsOrder: 4, groups: 2, tierGroup: 2, builder: 1})
	p.schedule = draw(p, "schedule", backoff.Schedule{time.Second, 5 * time.Second},
		backoff.Schedule{500 * time.Millisecond, 2 * time.Second, 10 * time.Second}, backoff.Schedule{3 * time.Second})
	p.processes = draw(p, "processes", 1, 2, 3)
	p.concurrency = draw(p, "concurrency", 1, 4, 16)
	p.keys, p.messages = draw(p, "keys", 1, 3, 10), draw(p, "messages", 20, 60, 150)
	p.takes = draw(p, "takes", 0, 10*time.Millisecond, 200*time.Millisecond)
	p.latency = draw(p, "latency", 0, time.Millisecond, 5*time.Millisecond)
	p.confirms = draw(p, "confirms", 0, 5*time.Millisecond, 50*time.Millisecond, 300*time.Millisecond)
	p.produces = p.shape == plain && draw(p, "produces", 1, 2, 3, 4) == 1
	p.breaker = p.shape != builder && draw(p, "breaker", 1, 2, 3, 4, 5, 6) == 1
	if !p.breaker && p.shape != builder && draw(p, "breaker by key", 1, 2, 3, 4, 5, 6) == 1 {
		p.breaker = true
		p.drawTenants()
	}
	if p.breaker {
		p.downAt, p.down = 10*time.Second+p.upTo(10*time.Second, "down at"), 25*time.Second+p.upTo(10*time.Second, "down")
	}
	p.maxHold = draw(p, "MaxHold", 0, 5*time.Second)
	switch p.shape {
	case keepsOrder:
		p.partitions = draw(p, "partitions", 1, 3)
		p.messages = draw(p, "messages", 20, 40) // each can keep those of its key for half a minute
	case builder:
		p.concurrency = 1 // watermill-amqp has one message in flight
		p.messages = min(p.messages, 60)
	default:
		p.prefetch = draw(p, "prefetch", 0, 1, 2, 3) / 3 * (p.concurrency + 2)
	}
	for n := range draw(p, "faults", 0, 1, 11, 21, 2, 3) % 10 { // 11 and 21: one has a threefold weight
		p.faults = append(p.faults, p.drawFault(n))
	}
	if p.mayHave(withheld) && p.number("longer than PublishTimeout")%4 > 0 {
		p.maxHold = 0 // else what is not confirmed goes back before it is held
	}
	if len(p.faults) == 1 && p.maxHold == 0 && p.faults[0].deploys() && p.faults[0].kind != withheld {
		p.faults[0].lasts += time.Minute // what was on its way is given up before, and a process can end
	}
	p.fates = map[string]fate{}
	for n := range p.messages {
		p.fates[idOf(n)] = p.drawFate(idOf(n))
	}
	return p
}

// draw chooses one of several values: the one for which a random number, from the seed and the value, is the highest.
func draw[T any](p plan, what string, of ...T) (chosen T) {
	var best uint64
	for _, each := range of {
		if n := p.number(what, each); n >= best {
			best, chosen = n, each
		}
	}
	return chosen
}

// drawWeighted chooses one of the names, which have weights.
func drawWeighted(p plan, what string, weights map[string]int) (chosen string) {
	var best uint64
	for name, weight := range weights {
		for n := range weight {
			if r := p.number(what, name, n); r >= best {
				best, chosen = r, name
			}
		}
	}
	return chosen
}

// number is a random number of the seed.
func (p plan) number(of ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, p.seed, of)
	return rand.NewPCG(h.Sum64(), 1).Uint64()
}

// raced: this is built with the race detector. The subscriber of watermill-amqp, which the builder serves, has a data
// race when it reconnects.
var raced bool

// upTo is a random duration of the seed.
func (p plan) upTo(most time.Duration, of ...any) time.Duration {
	if most == 0 {
		return 0
	}
	return time.Duration(p.number(of...) % uint64(most))
}

// without is the plan without one of its faults.
func (p plan) without(fault int) plan {
	all := p.faults
	p.faults = append(all[:fault:fault], all[fault+1:]...)
	return p
}

func (p plan) String() string {
	text := fmt.Sprintf("seed %d: RabbitMQ %s, %s, %d processes, concurrency %d, %d messages of %d keys, schedule %v",
		p.seed, p.rules.Version, p.shape, p.processes, p.concurrency, p.messages, p.keys, p.schedule)
	if p.partitions > 0 {
		text += fmt.Sprintf(", %d partitions", p.partitions)
	}
	if p.produces {
		text += ", produces"
	}
	if p.breaker {
		text += fmt.Sprintf(", breaker, down at %v for %v", p.downAt.Round(time.Millisecond), p.down.Round(time.Millisecond))
	}
	if p.tenants != nil {
		text += fmt.Sprintf(", share %v, tenants %v", p.share, p.tenants)
	}
	return fmt.Sprintf("%s, faults %v", text, p.faults)
}

// idOf is the id of a message.
func idOf(number int) string { return fmt.Sprintf("%03d", number) }

// queues are the work queues.
func (p plan) queues() []string {
	if p.shape == groups || p.shape == tierGroup {
		return []string{topic + "_a", topic + "_b"}
	}
	return []string{topic}
}
