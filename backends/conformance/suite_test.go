package conformance

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
)

// running are the servers. They have to be stopped however the tests end.
var running struct {
	sync.Mutex // also while one starts
	servers    []*servers.Server
	shared     map[string]string // addresses, by backend
}

// interrupted is done after the first signal.
var interrupted, interrupt = context.WithCancel(context.Background())

// sharedServer returns the address of a server that stays until the end, and is started once.
func sharedServer(t *testing.T, backend string) string {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	url, known := running.shared[backend]
	if !known {
		e, err := registry.Find(backend)
		require.NoError(t, err)
		if running.shared == nil {
			running.shared = map[string]string{}
		}
		url = startLocked(t, e).URL
		running.shared[backend] = url
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

// keep has servers stopped at the end.
func keep(all ...*servers.Server) {
	running.Lock()
	defer running.Unlock()
	running.servers = append(running.servers, all...)
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
	os.Exit(status)
}

// cases are those that each backend has.
var cases = []struct {
	name string
	test func(*testing.T, *fixture)
}{
	{"delays come in order and never early", delays},
	{"two services change while their messages wait", changes},
	{"dead letters are complete", deadLetters},
	{"a subscriber of several topics", subscriber},
	{"16 messages in flight", concurrency},
	{"dead letters come back", redrive},
	{"a shorter wait overtakes a longer one", overtakes},
	{"long names", longNames},
	{"a call that outlives the lease", outlived},
	{"crash while dead letters come back", crashOfRedrive},
	{"the lock of the dead letters is lost", lockLost},
	{"a shutdown gives back what is in flight", givesBack},
	{"a topic that is broken", brokenTopic},
	{"a message that another process has", leaseLost},
	{"processes are killed", killed},
	{"processes crash while their messages wait", crashed},
	{"connections are cut, and the server is killed", serverKilled},
	{"topics that cannot be read", unreadable},
}

// TestConformance: many messages are due together on one backend after the other, while nothing else runs. Then all
// backends run side by side.
func TestConformance(t *testing.T) {
	t.Run("a program whose clock is behind", func(t *testing.T) { // it is built before anything is compared
		_, err := skewedProgram()
		require.NoError(t, err)
	})
	for _, e := range registry.All() {
		t.Run(e.Name, func(t *testing.T) {
			url := sharedServer(t, e.Name)
			t.Run("many are due together", func(t *testing.T) { dueTogether(t, newFixture(t, e, url)) })
			t.Parallel()
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.test(t, newFixture(t, e, url))
				})
			}
		})
	}
}
