package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/registry"
	"github.com/tieredretry/watermill-retry/backends/servers"
)

// reportVariable is the environment variable with the name of the report's file. Without it the report goes to stdout. The
// report has one line for each backend.
const reportVariable = "CONFORMANCE_REPORT"

// running are the servers. They have to be stopped however the tests end.
var running struct {
	sync.Mutex // also while one starts
	servers    []*servers.Server
}

// interrupted is done after the first signal.
var interrupted, interrupt = context.WithCancel(context.Background())

func startServer(t *testing.T, e registry.Entry) string {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	server, err := e.Server(interrupted)
	require.NoError(t, err)
	running.servers = append(running.servers, server)
	return server.URL
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
	child()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		stopServers()
		os.Exit(130)
	}()
	status := m.Run()
	stopServers()
	if err := writeReport(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// TestConformance measures the lateness of one backend after the other, while nothing else runs. Then all backends run side by
// side, each with the case of 1000 messages first.
func TestConformance(t *testing.T) {
	for _, e := range registry.All() {
		t.Run(e.Name, func(t *testing.T) {
			s := &score{name: e.Name}
			scores = append(scores, s)
			t.Cleanup(func() { s.failed = t.Failed(); s.done = true })
			url := startServer(t, e)
			run := func(name string, test func(*testing.T, *fixture), parallel bool) {
				t.Run(name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					test(t, newFixture(t, e, url, s))
				})
			}
			run("lateness", lateness, false)
			t.Parallel()
			run("1000 messages with 16 handlers", volume, false)
			run("dead letters come back", redrive, false) // 300 messages
			run("dead letters come back as they were", redriveOdd, true)
			run("delays come in order and never early", delays, true)
			run("a shorter wait overtakes a longer one", overtakes, true)
			run("no fan-out to a second consumer group", fanOut, true)
			run("dead letters are complete", deadLetters, true)
			run("a tier longer than the redelivery limit", longTier, true)
			run("a handler with a schedule of its own", ownSchedule, true)
			run("two groups of one connection", groups, true)
			run("a subscriber of several topics", subscriber, true)
			run("wrong options are refused", refusals, true)
			run("several messages in flight", concurrency, true)
			run("a paused handler", paused, true)
			run("what observers see", observed, true)
			if e.Expect.InMemory {
				return
			}
			run("restart in the middle of a wait", restart, true)
			run("crash before and after a publish", crash, true)
			run("crash while dead letters come back", crashOfRedrive, true)
		})
	}
}

// score is a backend's line of the report.
type score struct {
	name string

	mu               sync.Mutex
	p99              time.Duration
	lost, duplicates int
	failed, done     bool
}

var scores []*score

func (s *score) add(lost, duplicates int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost += lost
	s.duplicates += duplicates
}

func writeReport() (err error) {
	out := os.Stdout
	if file := os.Getenv(reportVariable); file != "" {
		if out, err = os.Create(file); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	for _, s := range scores {
		result := "pass"
		if s.failed || !s.done {
			result = "fail"
		}
		_, err := fmt.Fprintf(out, "backend=%s result=%s lateness_p99_ms=%.1f lost=%d duplicates=%d\n",
			s.name, result, float64(s.p99)/float64(time.Millisecond), s.lost, s.duplicates)
		if err != nil {
			return err
		}
	}
	return nil
}
