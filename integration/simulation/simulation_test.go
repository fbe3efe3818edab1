package simulation

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
)

// TestSeeds runs one seed after the other, those first that have found something before. SIM_SEEDS is how many, SIM_FIRST
// the first one, and after SIM_FAILURES that have failed the others are not run. SIM_SEED is one of them, see replay.
func TestSeeds(t *testing.T) {
	if seed := number("SIM_SEED", 0); seed > 0 {
		replay(t, uint64(seed))
		return
	}
	first, seeds, most := uint64(number("SIM_FIRST", 1)), uint64(number("SIM_SEEDS", 300)), number("SIM_FAILURES", 10)
	var all []uint64
	for _, each := range kept {
		all = append(all, each.seed)
	}
	for seed := first; seed < first+seeds; seed++ {
		all = append(all, seed)
	}
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
