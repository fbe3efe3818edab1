package simulation

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
)

// TestSeeds runs one seed after the other. SIM_SEEDS is how many, SIM_SEED is one of them, with its trace.
func TestSeeds(t *testing.T) {
	first, seeds := uint64(1), uint64(number("SIM_SEEDS", 300))
	if one := number("SIM_SEED", 0); one > 0 {
		first, seeds = uint64(one), 1
	}
	failed := 0
	for seed := first; seed < first+seeds; seed++ {
		violations, trace := simulate(t, planOf(seed))
		if len(violations) == 0 {
			continue
		}
		failed++
		t.Errorf("%v\n  %s (of %d)", planOf(seed), violations[0], len(violations))
		if seeds == 1 {
			fmt.Println(trace)
		}
		if failed == 10 {
			t.Fatal("10 seeds have failed: the others are not run")
		}
	}
}

func simulate(t *testing.T, p plan) (violations []string, trace string) {
	synctest.Test(t, func(t *testing.T) { violations, trace = run(t, p) })
	return violations, trace
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}
