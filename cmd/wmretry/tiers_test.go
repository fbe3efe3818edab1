package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

type drained struct {
	Queue        string
	Total, Done  int
	Kept, Unseen int
}

func TestTiersDrain(t *testing.T) {
	t.Parallel()
	q := declareWith(t, time.Hour, 2*time.Hour)
	q.wait("1h", 5)
	q.wait("2h", 3)

	counted := lines[drained](t, run(t, 0, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--dry-run", "--json").stdout)
	assert.Equal(t, []drained{{Queue: q.tier("2h"), Total: 3, Done: 3}}, counted)
	sent := lines[drained](t, run(t, 0, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--limit", "2", "--json").stdout)
	assert.Equal(t, 2, sent[0].Done)
	q.await(q.work, 2)
	q.await(q.tier("2h"), 1)

	r := run(t, 0, "tiers", "drain", q.work, "1h", "--prefix", q.prefix)
	assert.Regexp(t, `(?m)^ +5  sent back to their work queue`, r.stdout)
	assert.Regexp(t, `(?m)^ +5  messages were on the tier at the start`, r.stdout)
	q.await(q.work, 7)
	ids, _ := q.take(q.work)
	assert.Len(t, ids, 5, "five of one tier, and two of the other one with the same ids")
	q.await(q.tier("2h"), 1)
}

// TestTiersPrune prints a plan. Package deadletter tests what is removed.
func TestTiersPrune(t *testing.T) {
	t.Parallel()
	q := declareWith(t, time.Hour, 2*time.Hour, 3*time.Hour)
	q.wait("3h", 1)
	q.awaitStatus(0, 0, 0, 1)
	args := []string{"tiers", "prune", "--prefix", q.prefix, "--queue", q.work, "--schedule", "2h"}
	r := run(t, 0, append(args, "--dry-run")...)
	assert.Regexp(t, `(?m)^would be removed  `+q.tier("1h")+`$`, r.stdout)
	assert.Regexp(t, `(?m)^left  `+q.tier("3h")+`: it has a consumer, or messages`, r.stdout)
	assert.Contains(t, run(t, 0, "tiers", "prune", "--prefix", q.prefix).stdout, "No tier is retired.", "bindings lead to them")
}
