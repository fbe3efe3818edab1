package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDemo goes through a first outage with the letters of the demo.
func TestDemo(t *testing.T) {
	t.Parallel()
	work := unique(t, "wmretry_demo")
	prefix := work + "-retry"
	t.Cleanup(func() { run(t, 0, "demo", "--queue", work, "--clean") })
	r := run(t, 0, "demo", "--queue", work, "--letters", "40")
	assert.Contains(t, r.stdout, "40 letters are in "+work+".dead, and 1 orphan in "+prefix+".orphans")
	assert.Contains(t, r.stdout, "wmretry dead redrive "+work+" --canary 5")

	kinds := map[string]int{}
	for _, l := range lines[listed](t, run(t, 0, "dead", "list", work, "--json").stdout) {
		assert.Equal(t, work, l.Target)
		kinds[l.Kind+" "+string(l.Record.DeadReason)]++
	}
	assert.Equal(t, 2, kinds["broker delivery_limit"], kinds)
	assert.Equal(t, 2, kinds["poison "], kinds)
	assert.Equal(t, 2, kinds["unknown "], kinds)
	assert.Equal(t, 34, kinds["library exhausted"]+kinds["library permanent"], kinds)
	assert.Regexp(t, `(?m)^ +\d+  exhausted +syscall\.Errno +save order: dial tcp <[a-z]+>.* connection refused`, run(t, 0, "dead", "list", work, "--group").stdout)
	down := redriven(t, 0, "dead", "redrive", work, "--reason", "connection refused", "--dry-run").Done
	require.Greater(t, down, 10)

	orphans := lines[listed](t, run(t, 0, "orphans", "list", "--prefix", prefix, "--json").stdout)
	require.Len(t, orphans, 1)
	assert.Equal(t, "orphan", orphans[0].Kind)
	assert.Contains(t, run(t, 0, "orphans", "show", orphans[0].ID, "--prefix", prefix).stdout, "its work queue was gone")
	assert.Contains(t, run(t, 1, "orphans", "redrive", "--prefix", prefix).stderr, "start its app")

	// The dependency is still down: the canary dies.
	broken := start(t, nil, "demo", "--queue", work, "--consume", "--broken")
	broken.await(broken.stderr, "the dependency is still down")
	r = run(t, 3, "dead", "redrive", work, "--reason", "connection refused", "--canary", "4", "--canary-wait", "30s", "--json")
	s := summaryOf(t, r.stdout)
	assert.Equal(t, 4, s.Done)
	assert.GreaterOrEqual(t, s.Redead, 1)
	require.NotEmpty(t, s.Causes)
	assert.Contains(t, s.Causes[0].Reason, "connection refused")
	r = run(t, 3, "dead", "redrive", work, "--reason", "connection refused", "--canary", "4", "--canary-wait", "30s")
	assert.Regexp(t, `(?m)^DIED AGAIN +DEAD REASON .*\n.*\n +\d  exhausted .*connection refused`, r.stdout)
	assert.Contains(t, r.stderr, "repair the cause first")
	require.NoError(t, broken.command.Process.Signal(os.Interrupt))
	require.Equal(t, 0, broken.wait().code, broken.stderr)

	// It is back: they live.
	repaired := start(t, nil, "demo", "--queue", work, "--consume")
	repaired.await(repaired.stderr, "the dependency is back")
	s = redriven(t, 0, "dead", "redrive", work, "--reason", "connection refused", "--canary", "4", "--canary-wait", "2s", "--max-redead", "5%")
	assert.GreaterOrEqual(t, s.Done, down-8)
	assert.Zero(t, s.Redead)
	require.NoError(t, repaired.command.Process.Signal(os.Interrupt))
	r = repaired.wait()
	require.Equal(t, 0, r.code, r.stderr)
	assert.Contains(t, r.stdout, " 0 failures")

	assert.Contains(t, run(t, 0, "demo", "--queue", work, "--clean").stdout, "the demo is removed, with ")
	names, err := managementOf(t).ListQueues()
	require.NoError(t, err)
	for _, queue := range names {
		assert.False(t, strings.HasPrefix(queue.Name, work), queue.Name)
	}
}
