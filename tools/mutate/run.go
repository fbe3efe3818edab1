package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type verdict string

const (
	red    verdict = "red"
	notRed verdict = "NOT RED"
	stale  verdict = "stale"
	green  verdict = "green" // the tests pass without a mutation, as they must
)

type result struct {
	verdict verdict
	name    string
	took    time.Duration // how long the tests took, without their build
	why     string
	passed  map[string]time.Duration // how long a test took that has passed, by its name
}

type runner struct {
	folder  string // temporary
	timeout time.Duration
	number  atomic.Int64
	all     *switched
	slots   chan struct{} // has a value for each build and each test without a broker that runs
	broker  sync.Mutex    // held while tests use the broker
	report  func(result)
}

// A binary is the built tests of a folder.
type binary struct {
	in, path string
	env      []string
}

// simulation is the folder of the tests that need a broker in memory only.
const simulation = "integration/simulation"

func needsBroker(in string) bool {
	return strings.HasPrefix(in, "integration/") && in != simulation || strings.HasPrefix(in, "cmd/")
}

// tests reports mutations with the same folder of tests: most of them in one build, where that is as good.
func (r *runner) tests(in string, of []mutation) {
	var together, alone []mutation
	for _, m := range of {
		if r.all.has[m.name] {
			together = append(together, m)
		} else {
			alone = append(alone, m)
		}
	}
	b, control := r.control(in, of, r.all.overlay)
	if control.verdict != green {
		fmt.Printf("%s: each mutation has a build of its own: %s\n", in, control.why)
		together, alone = nil, of
		b, control = r.control(in, of, "")
	}
	r.report(control)
	var running sync.WaitGroup
	for _, m := range together {
		running.Go(func() { r.report(r.run(b, m.tests, r.deadline(m, control), m.name)) })
	}
	for _, m := range alone {
		running.Go(func() { r.report(r.alone(m, r.deadline(m, control))) })
	}
	running.Wait()
}

// control builds tests and runs them without a mutation: a test that always fails guards nothing.
func (r *runner) control(in string, of []mutation, overlay string) (*binary, result) {
	name := "without a mutation: " + in
	b, err := r.build(in, overlay)
	if err != nil {
		return nil, result{verdict: stale, name: name, why: err.Error()}
	}
	tests := make([]string, len(of))
	for i, m := range of {
		tests[i] = m.tests
	}
	got := r.run(b, strings.Join(tests, "|"), time.Duration(len(of))*r.timeout, "")
	got.name = name
	switch got.verdict {
	case notRed:
		got.verdict = green
	case red:
		got.verdict, got.why = stale, "they fail: "+got.why
	}
	return b, got
}

// deadline returns how long the tests of a mutation may run: twice as long as without it where that is more than the
// timeout, so that a test that is only slow does not fail.
func (r *runner) deadline(m mutation, control result) time.Duration {
	tests := regexp.MustCompile(m.tests)
	var took time.Duration
	for name, of := range control.passed {
		if tests.MatchString(name) {
			took += of
		}
	}
	return max(r.timeout, 2*took)
}

// alone runs a mutation in a build of its own.
func (r *runner) alone(m mutation, deadline time.Duration) result {
	overlay, err := r.overlay(m)
	if err != nil {
		return result{verdict: stale, name: m.name, why: err.Error()}
	}
	b, err := r.build(m.in, overlay)
	if err != nil {
		return result{verdict: stale, name: m.name, why: err.Error()}
	}
	defer func() { _ = os.Remove(b.path) }()
	return r.run(b, m.tests, deadline, m.name)
}

// apply returns the changed text of the file.
func (m mutation) apply() ([]byte, error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("%s has this text %d times, it must have it once: %q", m.file, n, m.old)
	}
	return []byte(strings.Replace(string(text), m.old, m.new, 1)), nil
}

// overlay writes what the flag -overlay of the go command reads, and returns its name.
func (r *runner) overlay(m mutation) (string, error) {
	text, err := m.apply()
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	base := filepath.Join(r.folder, fmt.Sprint(r.number.Add(1)))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: base + ".go"}})
	return base + ".json", errors.Join(err, os.WriteFile(base+".go", text, 0o600),
		os.WriteFile(base+".json", list, 0o600))
}

// build builds the tests of a folder, with an overlay where it is not empty.
func (r *runner) build(in, overlay string) (*binary, error) {
	r.slots <- struct{}{}
	defer func() { <-r.slots }()
	b := &binary{in: in, path: filepath.Join(r.folder, fmt.Sprint(r.number.Add(1), ".test")), env: os.Environ()}
	if overlay != "" {
		// tests build programs, too
		b.env = append(b.env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", b.path, ".")
	build.Dir, build.Env = in, b.env
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("does not build: %s", strings.TrimSpace(string(output)))
	}
	return b, nil
}

// run runs tests with the mutation of this name, which may be "".
func (r *runner) run(b *binary, tests string, timeout time.Duration, name string) result {
	if needsBroker(b.in) {
		r.broker.Lock()
		defer r.broker.Unlock()
	} else {
		r.slots <- struct{}{}
		defer func() { <-r.slots }()
	}
	began := time.Now()
	run := exec.Command(b.path, "-test.v", "-test.run="+tests, "-test.timeout="+timeout.String(),
		fmt.Sprint("-test.failfast=", name != ""))
	run.Dir, run.Env = b.in, append(slices.Clone(b.env), activeMutation+"="+name, "SIM_SEEDS=300", "SIM_FAILURES=1")
	output, err := run.CombinedOutput()
	got := judge(string(output), err)
	got.name, got.took = name, time.Since(began)
	return got
}

var passedTest = regexp.MustCompile(`(?m)^--- PASS: (\S+) \((\S+)\)$`)

// failedTest finds tests that failed, and those that still ran at the timeout.
var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^\s+(Test\S+) \([0-9hms.]+\)$`)

// panickedTest finds a test in the stack of a panic that has ended the process.
var panickedTest = regexp.MustCompile(`(?m)^\S+\.(Test\w+)(?:\.func\d+)*\(`)

// failedSeed finds the seed that the simulation has found, and what was wrong.
var failedSeed = regexp.MustCompile(`(seed \d+): .*\n +(.*)`)

func judge(output string, err error) result {
	if err == nil {
		passed := map[string]time.Duration{}
		for _, found := range passedTest.FindAllStringSubmatch(output, -1) {
			passed[found[1]], _ = time.ParseDuration(found[2])
		}
		if len(passed) == 0 {
			return result{verdict: stale, why: "no test has this name"}
		}
		return result{verdict: notRed, passed: passed}
	}
	var failed []string
	for _, found := range failedTest.FindAllStringSubmatch(output, -1) {
		if found[2] != "" {
			found[2] += " (at the deadline)"
		}
		failed = append(failed, found[1]+found[2])
	}
	if found := panickedTest.FindStringSubmatch(output); len(failed) == 0 && found != nil {
		failed = append(failed, found[1]+" (it panics)")
	}
	if len(failed) == 0 {
		end := output[max(len(output)-500, 0):]
		return result{verdict: stale, why: fmt.Sprintf("no test failed, but: %v: %s", err, end)}
	}
	if found := failedSeed.FindStringSubmatch(output); found != nil {
		failed = found[1:]
	}
	return result{verdict: red, why: strings.Join(failed, " ")}
}
