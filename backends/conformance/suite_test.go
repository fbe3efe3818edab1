package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
)

// reportVariable is the environment variable with the name of the report's file. Without it the report goes to stdout.
// The report has one line for each backend.
const reportVariable = "CONFORMANCE_REPORT"

// running are the servers. They have to be stopped however the tests end.
var running struct {
	sync.Mutex // also while one starts
	servers    []*servers.Server
	shared     map[string]string // addresses, by backend
}

// interrupted is done after the first signal.
var interrupted, interrupt = context.WithCancel(context.Background())

// sharedServer returns the address of a server that stays until the end, and is started once.
func sharedServer(t *testing.T, e registry.Entry) string {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	url, known := running.shared[e.Name]
	if !known {
		if running.shared == nil {
			running.shared = map[string]string{}
		}
		url = startLocked(t, e).URL
		running.shared[e.Name] = url
	}
	return url
}

func startServer(t *testing.T, e registry.Entry) *servers.Server {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	return startLocked(t, e)
}

func startLocked(t *testing.T, e registry.Entry) *servers.Server {
	t.Helper()
	server, err := e.Server(interrupted)
	require.NoError(t, err)
	running.servers = append(running.servers, server)
	return server
}

func stopServers() {
	interrupt()
	running.Lock()
	defer running.Unlock()
	var all sync.WaitGroup
	for _, server := range running.servers {
		all.Go(server.Stop)
	}
	all.Wait()
}

func TestMain(m *testing.M) {
	process.Main()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		stopServers()
		os.Exit(130)
	}()
	status := m.Run()
	stopServers()
	if skewedFolder != "" {
		_ = os.RemoveAll(skewedFolder)
	}
	if err := writeReport(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// TestConformance measures one backend after the other, while nothing else runs. Then all backends run side by side.
func TestConformance(t *testing.T) {
	t.Run("a program whose clock is behind", func(t *testing.T) { // it is built before anything is measured
		_, err := skewedProgram()
		require.NoError(t, err)
	})
	for _, e := range registry.All() {
		t.Run(e.Name, func(t *testing.T) {
			s := scoreOf(t, e.Name)
			url := sharedServer(t, e)
			run := func(name string, test func(*testing.T, *fixture), parallel bool) {
				t.Run(name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					test(t, newFixture(t, e, url, s))
				})
			}
			if !e.Expect.DoorOnly {
				run("many are due together", dueTogether, false)
			}
			t.Parallel()
			run("delays come in order and never early", delays, true)
			run("two services change while their messages wait", changes, true)
			run("dead letters are complete", deadLetters, true)
			run("a subscriber of several topics", subscriber, true)
			run("16 messages in flight", concurrency, true)
			if e.Expect.DoorOnly {
				return
			}
			run("dead letters come back", redrive, true)
			run("a shorter wait overtakes a longer one", overtakes, true)
			run("a paused handler", paused, true)
			run("a tenant that fails", tenants, true)
			run("long names", longNames, true)
			run("a call that outlives the lease", outlived, true)
			if e.Expect.InMemory {
				return
			}
			run("crash while dead letters come back", crashOfRedrive, true)
			run("the lock of the dead letters is lost", lockLost, true)
			run("a shutdown gives back what is in flight", givesBack, true)
			run("a topic that is broken", brokenTopic, true)
			run("a message that another process has", leaseLost, true)
			run("processes are killed", killed, true)
			run("processes crash while their messages wait", crashed, true)
			run("a clock is behind", skewed, true)
			run("connections are cut, and the server is killed", serverKilled, true)
			run("topics that cannot be read", unreadable, true)
		})
	}
}

// fields are those of the report's lines, in their order, between backend and result.
var fields = []string{
	"lost", "early", "scale_down", "renamed", "foreign", "skew_early", "outlived", "left", "publishes_per_hour",
	"p99_ms",
}

// score is a backend's line of the report. A field without a value is a hyphen: it was not measured. lost is measured
// where processes or the server are killed.
type score struct {
	name string

	mu      sync.Mutex
	texts   map[string]string
	numbers map[string]int
	failed  bool
	running int // tests of the backend
}

// scores are those of the backends that have been tested.
var scores struct {
	sync.Mutex
	all []*score
}

// scoreOf returns the score of a backend. It counts the result of the test.
func scoreOf(t *testing.T, backend string) *score {
	scores.Lock()
	defer scores.Unlock()
	i := slices.IndexFunc(scores.all, func(s *score) bool { return s.name == backend })
	if i < 0 {
		i = len(scores.all)
		scores.all = append(scores.all, &score{name: backend, texts: map[string]string{}, numbers: map[string]int{}})
	}
	s := scores.all[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running--
		s.failed = s.failed || t.Failed()
	})
	return s
}

// add adds to a number.
func (s *score) add(field string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers[field] += n
	s.texts[field] = strconv.Itoa(s.numbers[field])
}

func (s *score) set(field, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts[field] = text
}

// passes sets a field to the result of a test when it has ended, with its subtests.
func (s *score) passes(t *testing.T, field string) {
	s.set(field, "fail")
	t.Cleanup(func() {
		if !t.Failed() {
			s.set(field, "pass")
		}
	})
}

// line is the backend's line.
func (s *score) line() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := "backend=" + s.name
	for _, field := range fields {
		line += " " + field + "=" + cmp.Or(s.texts[field], "-")
	}
	if s.failed || s.running > 0 {
		return line + " result=fail"
	}
	return line + " result=pass"
}

func writeReport() (err error) {
	out := os.Stdout
	if file := os.Getenv(reportVariable); file != "" {
		if out, err = os.Create(file); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	for _, s := range scores.all {
		if _, err := fmt.Fprintln(out, s.line()); err != nil {
			return err
		}
	}
	return nil
}
