package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

type drained struct {
	Tier         string
	Total, Done  int
	Kept, Unseen int
	Removed      bool
}

func TestTiersDrain(t *testing.T) {
	t.Parallel()
	q := declareWith(t, time.Hour, 2*time.Hour)
	q.wait("1h", 5)
	q.wait("2h", 3)

	r := run(t, 1, "tiers", "drain", q.work, "2h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "is in use: what waits there comes back by itself within 2h; --force sends it back now")
	r = run(t, 1, "tiers", "drain", q.work, "3h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "has the tiers 1h, 2h")
	r = run(t, 1, "tiers", "drain", "absent", "3h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "absent has no tiers")

	counted := lines[drained](t, run(t, 0, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--force", "--dry-run", "--json").stdout)
	assert.Equal(t, []drained{{Tier: q.tier("2h"), Total: 3, Done: 3}}, counted)
	sent := lines[drained](t, run(t, 0, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--force", "--limit", "2", "--json").stdout)
	assert.Equal(t, 2, sent[0].Done)
	assert.False(t, sent[0].Removed, "the tier is in use")
	q.await(q.work, 2)
	q.await(q.tier("2h"), 1)

	// The schedule does not have 1h any more.
	r = run(t, 0, "tiers", "drain", q.work, "1h", "--prefix", q.prefix, "--schedule", "2h")
	assert.Regexp(t, `(?m)^ +5  sent back to their work queue`, r.stdout)
	assert.Regexp(t, `(?m)^ +5  messages were on the tier at the start`, r.stdout)
	q.await(q.work, 7)
	ids, _ := q.take(q.work)
	assert.Len(t, ids, 5, "five of one tier, and two of the other one with the same ids")
	assert.Contains(t, r.stdout, "The empty queue "+q.tier("1h")+" is removed.")
	w, _ := q.statusOf(t, run(t, 0, "status", q.work, "--prefix", q.prefix, "--json").stdout)
	assert.False(t, slices.ContainsFunc(w.Tiers, func(tier deadletter.Tier) bool { return tier.Queue == q.tier("1h") }))
	q.await(q.tier("2h"), 1)
}

func TestTiersPrune(t *testing.T) {
	t.Parallel()
	q := declareWith(t, time.Hour, 2*time.Hour, 3*time.Hour)
	q.wait("3h", 1)
	q.awaitStatus(0, 0, 0, 1)
	args := []string{"tiers", "prune", "--prefix", q.prefix, "--queue", q.work, "--schedule", "2h"}
	r := run(t, 0, append(args, "--dry-run")...)
	assert.Regexp(t, `(?m)^would be removed  `+q.tier("1h")+`$`, r.stdout)
	assert.Regexp(t, `(?m)^left  `+q.tier("3h")+`: it has messages`, r.stdout)
	assert.Equal(t, 0, q.count(q.tier("1h")), "the queue is there")
	pruned := lines[deadletter.Pruned](t, run(t, 0, append(args, "--json")...).stdout)
	assert.Equal(t, []deadletter.Pruned{{Removed: []string{q.tier("1h")}, Left: []string{q.tier("3h")}}}, pruned)
	pruned = lines[deadletter.Pruned](t, run(t, 0, append(args, "--json", "--drain")...).stdout)
	assert.Equal(t, []deadletter.Pruned{{Removed: []string{q.tier("3h")}}}, pruned)
	q.await(q.work, 1)
	assert.Regexp(t, `^No tier is retired\. Which tiers a schedule has is only known with --queue and --schedule \(or --file\).*\n$`,
		run(t, 0, "tiers", "prune", "--prefix", q.prefix).stdout, "bindings lead to the others")
	assert.Equal(t, "No tier is retired.\n", run(t, 0, args...).stdout)
}
