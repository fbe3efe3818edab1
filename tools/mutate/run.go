package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	took    time.Duration // of the tests, without their build
	why     string
}

type runner struct {
	folder  string // temporary
	timeout time.Duration
	number  atomic.Int64
	broker  sync.Mutex // held while tests use the broker
}

func needsBroker(in string) bool {
	return strings.HasPrefix(in, "integration/") || strings.HasPrefix(in, "cmd/")
}

// control runs the tests of mutations in one folder without a mutation: a test that always fails guards nothing.
func (r *runner) control(of []mutation) result {
	tests := make([]string, len(of))
	for i, m := range of {
		tests[i] = m.tests
	}
	got := r.test(of[0].in, strings.Join(tests, "|"), "", time.Duration(len(of))*r.timeout)
	got.name = "without a mutation: " + of[0].in
	switch got.verdict {
	case notRed:
		got.verdict = green
	case red:
		got.verdict, got.why = stale, "they fail: "+got.why
	}
	return got
}

func (r *runner) mutate(m mutation) result {
	overlay, err := r.overlay(m)
	if err != nil {
		return result{verdict: stale, name: m.name, why: err.Error()}
	}
	got := r.test(m.in, m.tests, overlay, r.timeout)
	got.name = m.name
	return got
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

// test builds and runs tests, with an overlay where it is not empty.
func (r *runner) test(in, tests, overlay string, timeout time.Duration) result {
	binary := filepath.Join(r.folder, fmt.Sprint(r.number.Add(1), ".test"))
	defer func() { _ = os.Remove(binary) }()
	env := os.Environ()
	if overlay != "" {
		// tests build programs, too
		env = append(env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", binary, ".")
	build.Dir, build.Env = in, env
	if output, err := build.CombinedOutput(); err != nil {
		return result{verdict: stale, why: "does not build: " + strings.TrimSpace(string(output))}
	}
	if needsBroker(in) {
		r.broker.Lock()
		defer r.broker.Unlock()
	}
	began := time.Now()
	run := exec.Command(binary, "-test.v", "-test.run="+tests, "-test.timeout="+timeout.String(),
		fmt.Sprint("-test.failfast=", overlay != ""))
	run.Dir, run.Env = in, env
	output, err := run.CombinedOutput()
	got := judge(string(output), err)
	got.took = time.Since(began)
	return got
}

// failedTest finds tests that failed, and those that still ran at the timeout.
var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^\s+(Test\S+) \([0-9hms.]+\)$`)

func judge(output string, err error) result {
	if err == nil {
		if !strings.Contains(output, "\n--- PASS: ") {
			return result{verdict: stale, why: "no test has this name"}
		}
		return result{verdict: notRed}
	}
	var failed []string
	for _, found := range failedTest.FindAllStringSubmatch(output, -1) {
		if found[2] != "" {
			found[2] += " (at the deadline)"
		}
		failed = append(failed, found[1]+found[2])
	}
	if len(failed) == 0 {
		end := output[max(len(output)-500, 0):]
		return result{verdict: stale, why: fmt.Sprintf("no test failed, but: %v: %s", err, end)}
	}
	return result{verdict: red, why: strings.Join(failed, " ")}
}
