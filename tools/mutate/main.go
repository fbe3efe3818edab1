// Command mutate breaks the code on purpose, one mutation at a time, and runs the tests that must fail then:
//
//	go run ./tools/mutate [-run REGEXP] [-short] [-jobs N] [-timeout D]
//
// It prints one line for each mutation:
//
//	red      a named test fails: the promise is guarded
//	NOT RED  the tests pass: nothing guards the promise
//	stale    the mutation does not apply or does not build, or its tests do not exist or fail without it
//
// The exit code is 1 unless all are red. No file of the checkout changes: the go command reads the changed file from a
// temporary folder (go help build, -overlay). Tests in integration and cmd need a broker, as make mutate provides it;
// they run one at a time.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"
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
	jobs := flag.Int("jobs", 2, "how many run at the same time")
	timeout := flag.Duration("timeout", 20*time.Second, "of the tests of one mutation: a test that then still waits "+
		"has failed")
	flag.Parse()
	wanted, err := regexp.Compile(*run)
	if err != nil {
		log.Fatalf("-run: %v", err)
	}
	all, err := promises()
	if err != nil {
		log.Fatal(err)
	}
	var selected []mutation
	for _, p := range all {
		for _, m := range p.mutations {
			if wanted.MatchString(m.name+" "+m.file+" "+m.in) && !(*short && needsBroker(m.in)) {
				selected = append(selected, m)
			}
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
	// What has the same tests and the same file follows each other: most of its build is cached.
	slices.SortStableFunc(selected, func(a, b mutation) int {
		return strings.Compare(a.in+" "+a.file, b.in+" "+b.file)
	})
	folder, err := os.MkdirTemp("", "mutate")
	if err != nil {
		log.Fatal(err)
	}
	allRed := (&runner{folder: folder, timeout: *timeout}).all(selected, *jobs)
	_ = os.RemoveAll(folder)
	if !allRed {
		os.Exit(1)
	}
}

// all reports whether all mutations are red.
func (r *runner) all(selected []mutation, jobs int) bool {
	began := time.Now()
	todo := make(chan func() result)
	counts := map[verdict]int{}
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range max(jobs, 1) {
		workers.Go(func() {
			for next := range todo {
				got := next()
				mu.Lock()
				counts[got.verdict]++
				if got.verdict != green {
					fmt.Printf("%-7s  %-52s %5.1fs  %s\n", got.verdict, got.name, got.took.Seconds(), got.why)
				}
				mu.Unlock()
			}
		})
	}
	for rest := selected; len(rest) > 0; {
		next := slices.IndexFunc(rest, func(m mutation) bool { return m.in != rest[0].in })
		if next < 0 {
			next = len(rest)
		}
		same := rest[:next]
		todo <- func() result { return r.control(same) }
		for _, m := range same {
			todo <- func() result { return r.mutate(m) }
		}
		rest = rest[next:]
	}
	close(todo)
	workers.Wait()
	fmt.Printf("%d red, %d NOT RED, %d stale, in %v\n", counts[red], counts[notRed], counts[stale],
		time.Since(began).Round(time.Second))
	return counts[red] == len(selected) && counts[stale] == 0
}
