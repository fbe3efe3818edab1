package simulation

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
)

// TestSeeds runs one seed after the other, those first that have found something before. SIM_SEEDS is how many, SIM_FIRST
// the first one, and after SIM_FAILURES that have failed the others are not run. SIM_SEED is one of them, see replay.
// SIM_PARTS is in how many processes they run.
func TestSeeds(t *testing.T) {
	if seed := number("SIM_SEED", 0); seed > 0 {
		replay(t, uint64(seed))
		return
	}
	part, parts := number("SIM_PART", 0), number("SIM_PARTS", 1)
	if part == 0 && parts > 1 {
		inParts(t, parts)
		return
	}
	all, most := seedsOf(part, parts), number("SIM_FAILURES", 10)
	// Little stays in memory, so a larger heap costs little, and the collector takes a tenth of the time.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	failed, left, traces := 0, 0, fnv.New64a()
	for _, seed := range all {
		if raced && planOf(seed).shape == builder {
			left++
			continue
		}
		got := simulate(t, planOf(seed))
		_, _ = traces.Write([]byte(got.trace))
		if len(got.violations) == 0 {
			continue
		}
		t.Errorf("%v\n  %s (of %d)", planOf(seed), got.violations[0].text, len(got.violations))
		if failed++; failed == most {
			t.Fatalf("%d seeds have failed: the others are not run. make sim SEED=%d replays the last", most, seed)
		}
	}
	t.Logf("%d seeds, %d of them failed; all traces together: %x", len(all)-left, failed, traces.Sum64())
	if left > 0 {
		t.Logf("%d seeds with the builder are left out with the race detector", left)
	}
}

// seedsOf are the seeds of one of several parts.
func seedsOf(part, parts int) (seeds []uint64) {
	all, first := []uint64{}, uint64(number("SIM_FIRST", 1))
	for _, each := range kept {
		all = append(all, each.seed)
	}
	for seed := first; seed < first+uint64(number("SIM_SEEDS", 300)); seed++ {
		all = append(all, seed)
	}
	for i, seed := range all {
		if i%parts == part%parts {
			seeds = append(seeds, seed)
		}
	}
	return seeds
}

// inParts runs the seeds in several processes at the same time: most of the time a run has work for one processor.
func inParts(t *testing.T, parts int) {
	var running sync.WaitGroup
	for part := range parts {
		running.Go(func() {
			run := exec.Command(os.Args[0], "-test.run=^TestSeeds$", "-test.v",
				"-test.timeout="+flag.Lookup("test.timeout").Value.String())
			run.Env = append(os.Environ(), fmt.Sprint("SIM_PART=", part+1))
			run.Stdout, run.Stderr = os.Stdout, os.Stderr
			if err := run.Run(); err != nil {
				t.Errorf("part %d of %d: %v", part+1, parts, err)
			}
		})
	}
	running.Wait()
}

// replay runs a seed until it fails, 20 times at most: each time the scheduler makes other choices. Then it leaves out
// each fault without which the seed fails, too, and prints what is left.
func replay(t *testing.T, seed uint64) {
	fails := func(p plan, tries int) (got result) {
		for range tries {
			if got = simulate(t, p); len(got.violations) > 0 {
				break
			}
		}
		return got
	}
	p := planOf(seed)
	got := fails(p, 20)
	for i := len(p.faults) - 1; i >= 0 && len(got.violations) > 0; i-- {
		if less := fails(p.without(i), 5); len(less.violations) > 0 {
			p, got = p.without(i), less
		}
	}
	fmt.Printf("%v\n%s", p, got.screen())
	for _, v := range got.violations {
		t.Error(v.text)
	}
}

func simulate(t *testing.T, p plan) (got result) {
	defer func() {
		if deadlock := recover(); deadlock != nil && p.shape != builder { // watermill-amqp leaves goroutines
			got.violations = append(got.violations, violation{text: fmt.Sprint(deadlock)})
		}
	}()
	synctest.Test(t, func(t *testing.T) { got = run(t, p) })
	got.collected(p.seed)
	return got
}

func number(name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(fmt.Sprintf("%s is %q: it must be a number", name, text))
	}
	return n
}
