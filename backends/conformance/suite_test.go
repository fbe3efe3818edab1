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

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/servers"
)

// reportVariable names the file for one line per backend. Where it is not set they go to stdout.
const reportVariable = "CONFORMANCE_REPORT"

// target is a backend as the suite sees it.
type target struct {
	name  string
	start func(context.Context) (*servers.Server, error)
	open  func(url string, logger watermill.LoggerAdapter) backends.Backend

	// memory: a restart is not survived.
	memory bool

	// share is how many handlers have a topic in common, 0 for all. On gochannel every subscription gets everything, and
	// watermill-sql on PostgreSQL lets a group handle one message of a topic at a time, for which the others fight.
	share int

	// late is what the 99th percentile of lateness must stay below in the quiet case, on two cores: generous.
	late time.Duration

	// clean, where it is set, removes what an app has on a server that may be somebody's own.
	clean func(t *testing.T, url string, app backends.App, topics []string)

	// keeps says which metadata the app's own publish leaves as they are. What a handler gets stays the same everywhere.
	keeps func(key, value string) bool
}

var targets = []target{
	{
		name: "gochannel", memory: true, share: 1, late: time.Second, keeps: all,
		start: func(context.Context) (*servers.Server, error) { return &servers.Server{Stop: func() {}}, nil },
		open: func(_ string, logger watermill.LoggerAdapter) backends.Backend {
			return backends.Memory(logger)
		},
	},
	{name: "rabbitmq-v2", late: time.Second, keeps: amqpKeeps, clean: cleanRabbitMQ, start: rabbitMQ, open: backends.RabbitMQ},
	{name: "rabbitmq-v3", late: time.Second, keeps: amqpKeeps, clean: cleanRabbitMQ, start: rabbitMQ, open: backends.RabbitMQv3},
	{name: "nats", late: time.Second, keeps: natsKeeps, start: servers.NATS, open: backends.NATS},
	{name: "redis", late: time.Second, keeps: all, start: servers.Redis, open: backends.Redis},
	{name: "postgres-delayed", share: 2, late: 2 * time.Second, keeps: jsonKeeps, start: servers.PostgreSQL, open: backends.Postgres},
	{name: "postgres", share: 2, late: 2 * time.Second, keeps: jsonKeeps, start: servers.PostgreSQL, open: backends.PostgresRelay},
	{name: "kafka", late: time.Second, keeps: all, start: servers.Kafka, open: backends.Kafka},
}

// rabbitMQ is the one that `make` finds or starts.
func rabbitMQ(context.Context) (*servers.Server, error) {
	url := os.Getenv("AMQP_URL")
	if url == "" {
		return nil, errors.New("AMQP_URL is not set: run `make test-backends`, or set it to a RabbitMQ's address")
	}
	return &servers.Server{URL: url, Stop: func() {}}, nil
}

// running are the servers, which have to be stopped however the tests end.
var running struct {
	sync.Mutex // also while one starts
	servers    []*servers.Server
}

// interrupted ends with the first signal.
var interrupted, interrupt = context.WithCancel(context.Background())

func startServer(t *testing.T, target target) string {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	server, err := target.start(interrupted)
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

// TestConformance measures lateness on one backend after the other, while nothing else runs; then all of them work side by
// side, each first for the volume and then for everything else.
func TestConformance(t *testing.T) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) {
			s := &score{name: target.name}
			scores = append(scores, s)
			t.Cleanup(func() { s.failed = t.Failed(); s.done = true })
			url := startServer(t, target)
			run := func(name string, test func(*testing.T, *fixture), parallel bool) {
				t.Run(name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					test(t, newFixture(t, target, url, s))
				})
			}
			run("lateness", lateness, false)
			t.Parallel()
			run("2000 messages with 16 handlers", volume, false)
			run("delays come in order and never early", delays, true)
			run("a shorter wait overtakes a longer one", overtakes, true)
			run("no fan-out to a second consumer group", fanOut, true)
			run("dead letters are whole", deadLetters, true)
			run("a tier longer than the redelivery limit", longTier, true)
			if target.memory {
				return // it keeps nothing over a restart
			}
			run("restart in the middle of a wait", restart, true)
			run("crash before and after a publish", crash, true)
		})
	}
}

// score is a backend's line.
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
