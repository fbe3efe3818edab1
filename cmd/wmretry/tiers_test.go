package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
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

	r := run(t, 1, "tiers", "drain", q.work, "2h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "is in use: what waits there comes back by itself within 2h; --force sends it back now")
	r = run(t, 1, "tiers", "drain", q.work, "3h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "has the tiers 1h, 2h")
	r = run(t, 1, "tiers", "drain", "absent", "3h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "absent has no tiers")

	counted := lines[drained](t, run(t, 0, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--force", "--dry-run", "--json").stdout)
	assert.Equal(t, []drained{{Queue: q.tier("2h"), Total: 3, Done: 3}}, counted)
	sent := lines[drained](t, run(t, 0, "tiers", "drain", q.work, "2h", "--prefix", q.prefix, "--force", "--limit", "2", "--json").stdout)
	assert.Equal(t, 2, sent[0].Done)
	q.await(q.work, 2)
	q.await(q.tier("2h"), 1)

	// The schedule does not have 1h any more.
	r = runPrinted(t, 0, `(?m)at once: (.*)$`, run(t, 0, "status", q.work, "--prefix", q.prefix, "--schedule", "2h 2h").stdout)
	assert.Regexp(t, `(?m)^ +5  sent back to their work queue`, r.stdout)
	assert.Regexp(t, `(?m)^ +5  messages were on the tier at the start`, r.stdout)
	q.await(q.work, 7)
	ids, _ := q.take(q.work)
	assert.Len(t, ids, 5, "five of one tier, and two of the other one with the same ids")
	q.await(q.tier("2h"), 1)
}

// runPrinted runs a command that the command has printed, as it stands, in a shell.
func runPrinted(t testing.TB, code int, pattern, text string, more ...string) result {
	t.Helper()
	printed := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, printed, text)
	words := strings.Join(append(printed[1:], more...), " ")
	p := &process{t: t, command: exec.Command("sh", "-c", words), stdout: &output{}, stderr: &output{}}
	p.command.Env = environment(t, []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")})
	p.command.Stdout, p.command.Stderr = p.stdout, p.stderr
	require.NoError(t, p.command.Start())
	r := p.wait()
	require.Equal(t, code, r.code, "%s\n%s\n%s", words, r.stdout, r.stderr)
	return r
}

// The hints of a group have its name and its schedule.
func TestTiersDrainOfAGroupAsPrinted(t *testing.T) {
	t.Parallel()
	work := unique(t, "wmretry_group")
	group := work + "_all"
	q := &queues{t: t, work: work, dead: deadletter.QueueOf(work), prefix: work + "_own", channel: channelOf(t)}
	q.topology = topology.New(topology.Config{
		Tiers: backoff.Schedule{time.Hour, 2 * time.Hour}.Tiers(), Prefix: q.prefix, TierGroup: group,
	}, topology.Queue{Name: work, Durable: true, Arguments: amqp091.Table{"x-queue-type": "quorum"}})
	require.NoError(t, q.topology.Declare(q.channel))
	t.Cleanup(func() { removeAll(t, work) })
	tier := group + "." + q.prefix + ".1h"
	exchange := *q
	exchange.prefix = group + "." + q.prefix
	exchange.wait("1h", 1)
	q.await(tier, 1)

	r := run(t, 1, "tiers", "drain", work, "1h", "--prefix", q.prefix, "--schedule", "2h")
	assert.Contains(t, runPrinted(t, 0, `tiers: (wmretry .*) sends back`, r.stderr, "--dry-run").stdout, "would be sent back")
	status := run(t, 0, "status", work, "--prefix", q.prefix, "--schedule", "2h", "--extra-tiers", "2h", "--group", group)
	assert.Regexp(t, `(?m)^  tier 1h .* retired$`, status.stdout)
	assert.Contains(t, runPrinted(t, 0, `(?m)at once: (.*)$`, status.stdout, "--dry-run").stdout, "would be sent back")
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
	status := run(t, 0, "status", q.work, "--prefix", q.prefix, "--schedule", "2h").stdout
	pruned := lines[deadletter.Pruned](t, runPrinted(t, 0, `(?m)can be removed: (.*)$`, status, "--json").stdout)
	assert.Equal(t, []deadletter.Pruned{{Removed: []string{q.tier("1h")}, Left: []string{q.tier("3h")}}}, pruned)
	run(t, 0, "tiers", "drain", q.work, "3h", "--prefix", q.prefix, "--schedule", "2h")
	q.await(q.work, 1)
	require.Eventually(t, func() bool { // the figures of the management API are late
		pruned = lines[deadletter.Pruned](t, run(t, 0, append(args, "--json")...).stdout)
		return len(pruned[0].Left) == 0
	}, 2*patience, time.Second)
	assert.Equal(t, []deadletter.Pruned{{Removed: []string{q.tier("3h")}}}, pruned)
	assert.Regexp(t, `^No tier is retired\. Which tiers a schedule has is only known with --queue and --schedule \(or --file\).*\n$`,
		run(t, 0, "tiers", "prune", "--prefix", q.prefix).stdout, "bindings lead to the others")
	assert.Equal(t, "No tier is retired.\n", run(t, 0, args...).stdout)
}
