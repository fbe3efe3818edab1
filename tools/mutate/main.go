// Command mutate breaks the code on purpose, one mutation at a time, and runs the tests that must fail then:
//
//	go run ./tools/mutate [-run REGEXP] [-short | -sim] [-jobs N] [-timeout D]
//
// It prints one line for each mutation:
//
//	red      a named test fails: the promise is guarded
//	NOT RED  the tests pass: nothing guards the promise
//	stale    the mutation does not apply or does not build, or its tests do not exist or fail without it
//
// The exit code is 1 unless all are red. No file of the checkout changes: the go command reads changed files from a
// temporary folder (go help build, -overlay). Each folder of tests is built once, with all mutations in it, and an
// environment variable says which of them is active. A mutation that changes more than the body of one function has a
// build of its own. Tests in integration and cmd need a broker, as make mutate provides it; they run one at a time.
// With -sim, the test is the simulation, and the reason has the first seed: -timeout must be some minutes.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"
)

// A promise is a section of the documents, with the mutations that break it.
type promise struct {
	text      string // what the user is promised
	mutations []mutation
}

// A mutation is one change of the code that must make a test fail.
type mutation struct {
	name   string // unique
	breaks string // what goes wrong for the user, so that the mutation can be made again in other code
	file   string // from the root of the checkout
	old    string // occurs in the file exactly once
	new    string
	in     string // the folder of the tests
	tests  string // the regexp of their names
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("mutate: ")
	run := flag.String("run", "", "only mutations with a `REGEXP` in their name, file or folder of tests")
	short := flag.Bool("short", false, "only mutations whose tests need no broker")
	jobs := flag.Int("jobs", 2, "how many builds and tests without a broker run at the same time")
	bySimulation := flag.Bool("sim", false, "only mutations that the simulation must find, with 300 seeds")
	timeout := flag.Duration("timeout", 20*time.Second, "of the tests of one mutation, or twice the time that they "+
		"need without it: a test that then still waits has failed")
	flag.Parse()
	wanted, err := regexp.Compile(*run)
	if err != nil {
		log.Fatalf("-run: %v", err)
	}
	listed, err := all()
	if err != nil {
		log.Fatal(err)
	}
	if *bySimulation {
		if listed, _, err = simulated(listed); err != nil {
			log.Fatal(err)
		}
	}
	var selected []mutation
	for _, m := range listed {
		if wanted.MatchString(m.name+" "+m.file+" "+m.in) && !(*short && needsBroker(m.in)) {
			selected = append(selected, m)
		}
	}
	if len(selected) == 0 {
		log.Fatalf("no mutation matches %q", *run)
	}
	onBroker := slices.ContainsFunc(selected, func(m mutation) bool { return needsBroker(m.in) })
	if onBroker && os.Getenv("AMQP_URL") == "" {
		log.Fatal("AMQP_URL is not set, and some mutations need a broker: use make mutate, .broker/devbroker exec " +
			"--, or -short")
	}
	folder, err := os.MkdirTemp("", "mutate")
	if err != nil {
		log.Fatal(err)
	}
	// All mutations are in the build, also those that are not selected, so that the next build finds it in the cache.
	together, err := writeSwitched(folder, listed)
	if err != nil {
		log.Fatal(err)
	}
	r := &runner{folder: folder, timeout: *timeout, all: together, slots: make(chan struct{}, max(*jobs, 1))}
	allRed := r.runAll(selected)
	_ = os.RemoveAll(folder)
	if !allRed {
		os.Exit(1)
	}
}

func all() (mutations []mutation, err error) {
	promised, err := promises()
	for _, p := range promised {
		mutations = append(mutations, p.mutations...)
	}
	return mutations, err
}

// runAll reports whether all mutations are red.
func (r *runner) runAll(selected []mutation) bool {
	began := time.Now()
	counts := map[verdict]int{}
	var mu sync.Mutex
	r.report = func(got result) {
		mu.Lock()
		defer mu.Unlock()
		counts[got.verdict]++
		if got.verdict != green {
			fmt.Printf("%-7s  %-52s %5.1fs  %s\n", got.verdict, got.name, got.took.Seconds(), got.why)
		}
	}
	folders := map[string][]mutation{}
	for _, m := range selected {
		folders[m.in] = append(folders[m.in], m)
	}
	var running sync.WaitGroup
	for in, mutations := range folders {
		running.Go(func() { r.tests(in, mutations) })
	}
	running.Wait()
	fmt.Printf("%d red, %d NOT RED, %d stale, in %v\n", counts[red], counts[notRed], counts[stale],
		time.Since(began).Round(time.Second))
	return counts[red] == len(selected) && counts[stale] == 0
}
