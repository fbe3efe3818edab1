// Package simulation runs the real code against a model of RabbitMQ in virtual time. A seed decides what the processes
// do, which faults come when, and how long everything takes. What must hold is in invariants.go.
package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/simulation/model"
)

const (
	// activity is how long messages are published and faults begin.
	activity = time.Minute
	// rest is how long the processes run after that. A broker tries for the last time to forward a message that a queue
	// did not take after three minutes.
	rest = 9 * time.Minute
)

// plan is all that a seed decides before the run.
type plan struct {
	seed        uint64
	rules       model.Rules
	schedule    backoff.Schedule
	processes   int
	concurrency int
	partitions  int // 0: the handler has no order
	keys        int
	messages    int
	produces    bool          // the handler produces a message for another one
	takes       time.Duration // of a call, at most
	latency     time.Duration
	confirms    time.Duration
	faults      []fault
}

// planOf draws the plan of a seed.
func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	one := func(all ...int) int { return all[r.IntN(len(all))] }
	p := plan{
		seed: seed, rules: model.Versions[r.IntN(len(model.Versions))],
		schedule: []backoff.Schedule{
			{time.Second, 5 * time.Second}, {500 * time.Millisecond, 2 * time.Second, 10 * time.Second}, {3 * time.Second},
		}[r.IntN(3)],
		processes: one(1, 2, 3), concurrency: one(1, 4, 16), keys: one(1, 3, 10), messages: one(20, 60, 200),
		takes:   time.Duration(one(0, 10, 200)) * time.Millisecond,
		latency: time.Duration(one(0, 1, 5)) * time.Millisecond, confirms: time.Duration(one(0, 5, 50)) * time.Millisecond,
		produces: r.IntN(4) == 0,
	}
	if r.IntN(3) == 0 {
		p.partitions, p.produces = one(1, 3), false
		p.messages = one(20, 40) // each can keep those of its key for half a minute
	}
	for range one(0, 1, 1, 2, 3) {
		p.faults = append(p.faults, p.drawFault(r))
	}
	return p
}

func (p plan) String() string {
	return fmt.Sprintf("seed %d: RabbitMQ %s, %d processes, concurrency %d, partitions %d, %d messages, schedule %v, "+
		"faults %v", p.seed, p.rules.Version, p.processes, p.concurrency, p.partitions, p.messages, p.schedule, p.faults)
}

// failures is how often the handler fails for a message, more often than there are retries for some: it depends on the
// id and the seed alone.
func (p plan) failures(id string) int {
	return int(p.hash(id) % uint64(len(p.schedule)+2))
}

// lasts is how long a call takes.
func (p plan) lasts(id string, failures int) time.Duration {
	if p.takes == 0 {
		return 0
	}
	return time.Duration(p.hash(fmt.Sprint(id, failures)) % uint64(p.takes))
}

func (p plan) hash(text string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, p.seed, text)
	return h.Sum64()
}
