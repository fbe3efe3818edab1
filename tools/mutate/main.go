// Command mutate breaks the code on purpose, one mutation at a time, and runs the tests that must fail then:
//
//	go run ./tools/mutate [-run REGEXP] [-short] [-jobs N] [-timeout D] [-list]
//
// It prints one line for each mutation:
//
//	red      a named test fails: the promise is guarded
//	NOT RED  the tests pass: nothing guards the promise
//	stale    the mutation does not apply, does not build, or its tests do not exist or fail without it
//
// The exit code is 1 unless all are red. No file of the checkout changes: the go command reads the changed file from a
// temporary folder (go help build, -overlay). Tests in integration and cmd/wmretry need a broker, as make mutate provides it; one
// of them runs at a time.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A promise is a section of the documentation, with the mutations that break it.
type promise struct {
	text      string // what the user is promised, in words
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

func all() []mutation {
	var all []mutation
	for _, p := range promises() {
		all = append(all, p.mutations...)
	}
	return all
}

func main() {
	run := flag.String("run", "", "only mutations with a `REGEXP` in their name, file or folder of tests")
	jobs := flag.Int("jobs", 2, "how many build at the same time")
	timeout := flag.Duration("timeout", 20*time.Second, "of the tests of one mutation: a test that then still waits has failed")
	short := flag.Bool("short", false, "only mutations whose tests need no broker")
	list := flag.Bool("list", false, "print the mutations, and run nothing")
	flag.Parse()
	wanted, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate: -run:", err)
		os.Exit(2)
	}
	selected := slices.DeleteFunc(all(), func(m mutation) bool {
		return !wanted.MatchString(m.name+" "+m.file+" "+m.in) || *short && m.needsBroker()
	})
	if *list {
		for _, m := range selected {
			fmt.Printf("%-44s %s\n", m.name, m.breaks)
		}
		return
	}
	if len(selected) == 0 {
		fmt.Fprintf(os.Stderr, "mutate: no mutation matches %q\n", *run)
		os.Exit(2)
	}
	if os.Getenv("AMQP_URL") == "" && slices.ContainsFunc(selected, mutation.needsBroker) {
		fmt.Fprintln(os.Stderr, "mutate: AMQP_URL is not set, and some mutations need a broker: use make mutate, or .broker/devbroker exec --")
		os.Exit(2)
	}
	// Mutations with the same tests, then those of the same file, follow each other: most of their build is cached.
	slices.SortStableFunc(selected, func(a, b mutation) int {
		return strings.Compare(a.in+" "+a.file, b.in+" "+b.file)
	})
	temporary, err := os.MkdirTemp("", "mutate")
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := &runner{folder: temporary, timeout: *timeout}
	good := r.runAll(ctx, selected, *jobs)
	_ = os.RemoveAll(temporary)
	if !good {
		os.Exit(1)
	}
}

// runAll reports whether all mutations are red.
func (r *runner) runAll(ctx context.Context, selected []mutation, jobs int) bool {
	began := time.Now()
	results := map[verdict]int{}
	todo := make(chan func() result)
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range max(jobs, 1) {
		workers.Go(func() {
			for next := range todo {
				got := next()
				mu.Lock()
				results[got.verdict]++
				if got.verdict != green {
					fmt.Println(got)
				}
				mu.Unlock()
			}
		})
	}
	controls, folders := controlsOf(selected)
	for _, in := range folders {
		todo <- func() result { return r.control(ctx, in, controls[in]) }
	}
	for _, m := range selected {
		todo <- func() result { return r.mutate(ctx, m) }
	}
	close(todo)
	workers.Wait()
	fmt.Printf("%d red, %d NOT RED, %d stale, in %v\n", results[red], results[notRed], results[stale], time.Since(began).Round(time.Second))
	return results[red] == len(selected) && results[stale] == 0
}

// controlsOf returns the tests of each folder that must pass without a mutation, and the folders in order.
func controlsOf(selected []mutation) (tests map[string][]string, folders []string) {
	tests = map[string][]string{}
	for _, m := range selected {
		if tests[m.in] == nil {
			folders = append(folders, m.in)
		}
		if !slices.Contains(tests[m.in], m.tests) {
			tests[m.in] = append(tests[m.in], m.tests)
		}
	}
	return tests, folders
}
