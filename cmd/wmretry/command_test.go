package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// binary is the command, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	folder, err := os.MkdirTemp("", "wmretry-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	binary = filepath.Join(folder, "wmretry")
	if output, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// result is what a process has printed, and its exit code.
type result struct {
	stdout, stderr string
	code           int
}

// process is a running command.
type process struct {
	t              testing.TB
	command        *exec.Cmd
	stdout, stderr *output
	terminal       *os.File
	read           chan struct{} // closed when the terminal is read to its end
}

// output can be read while the process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// environment is that of the tests without what changes the output.
func environment(t testing.TB, more []string) []string {
	t.Helper()
	own := slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, name := range []string{"NO_COLOR=", "TERM=", "VISUAL=", "EDITOR="} {
			if strings.HasPrefix(v, name) {
				return true
			}
		}
		return false
	})
	return append(append(own, "AMQP_URL="+os.Getenv("AMQP_URL"), "TERM=xterm-256color"), more...)
}

// start starts the command, with stdin at its end. environment are lines NAME=value.
func start(t testing.TB, environ []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, command: exec.Command(binary, args...), stdout: &output{}, stderr: &output{}}
	p.command.Env = environment(t, environ)
	p.command.Stdout, p.command.Stderr = p.stdout, p.stderr
	require.NoError(t, p.command.Start())
	t.Cleanup(func() { _ = p.command.Process.Kill() })
	return p
}

// onTerminal starts the command on a terminal of 120 columns, which is all of its standard streams.
func onTerminal(t testing.TB, environ []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, command: exec.Command(binary, args...), stdout: &output{}, stderr: &output{}, read: make(chan struct{})}
	p.command.Env = environment(t, environ)
	terminal, err := pty.StartWithSize(p.command, &pty.Winsize{Rows: 40, Cols: 120})
	require.NoError(t, err)
	p.terminal = terminal
	go func() {
		defer close(p.read)
		_, _ = io.Copy(p.stdout, terminal) // ends with EIO
	}()
	t.Cleanup(func() { _, _ = p.command.Process.Kill(), terminal.Close() })
	return p
}

// answer types a line when the terminal shows a text.
func (p *process) answer(shown, line string) {
	p.t.Helper()
	p.await(p.stdout, shown)
	_, err := p.terminal.WriteString(line + "\n")
	require.NoError(p.t, err)
}

func (p *process) await(o *output, text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return strings.Contains(o.String(), text) }, patience, 10*time.Millisecond, "the command must print %q", text)
}

// wait waits until the process has ended.
func (p *process) wait() result {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.command.Wait() }()
	select {
	case <-ended:
	case <-time.After(2 * patience):
		_ = p.command.Process.Signal(syscall.SIGQUIT) // prints its goroutines
		<-ended
		p.t.Fatalf("%v does not end\n%s\n%s", p.command.Args, p.stdout, p.stderr)
	}
	if p.read != nil {
		<-p.read
	}
	return result{p.stdout.String(), p.stderr.String(), p.command.ProcessState.ExitCode()}
}

// run runs the command, and requires an exit code.
func run(t testing.TB, code int, args ...string) result {
	t.Helper()
	return runWith(t, code, nil, args...)
}

func runWith(t testing.TB, code int, environ []string, args ...string) result {
	t.Helper()
	r := start(t, environ, args...).wait()
	require.Equal(t, code, r.code, "wmretry %s\n%s\n%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r
}

// lines decodes lines of JSON.
func lines[T any](t testing.TB, text string) []T {
	t.Helper()
	var all []T
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var one T
		err := decoder.Decode(&one)
		if err == io.EOF {
			return all
		}
		require.NoError(t, err, text)
		all = append(all, one)
	}
}

type summary struct {
	Total, Done, Other, Kept, Unseen, Redead, Doubtful int

	Interrupted bool
	Error       string
	Causes      []group
}

type group struct {
	Count   int
	Reason  string
	Example string
}

// redriven runs a command with --json and returns its summary, which must add up.
func redriven(t testing.TB, code int, args ...string) summary {
	t.Helper()
	return summaryOf(t, run(t, code, append(args, "--json")...).stdout)
}

func summaryOf(t testing.TB, text string) summary {
	t.Helper()
	all := lines[summary](t, text)
	require.Len(t, all, 1, text)
	s := all[0]
	assert.Equal(t, s.Total, s.Done+s.Other+s.Kept+s.Unseen, "the summary must add up: %s", text)
	return s
}

// escape matches what changes a terminal. Line feeds and tabs do not.
var escape = regexp.MustCompile("[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f\u202e]")

// colour matches the colours and weights of the command itself.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")
