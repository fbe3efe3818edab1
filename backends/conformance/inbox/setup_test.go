package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// running is the server of all tests of the inbox.
var running struct {
	sync.Mutex
	postgres *servers.Server
}

// database returns the address of a PostgreSQL that the tests share.
func database(t *testing.T) string {
	t.Helper()
	running.Lock()
	defer running.Unlock()
	if running.postgres == nil {
		server, err := servers.PostgreSQL(context.Background())
		require.NoError(t, err)
		running.postgres = server
	}
	return running.postgres.URL
}

func stop() {
	running.Lock()
	defer running.Unlock()
	if running.postgres != nil {
		running.postgres.Stop()
	}
}

func TestMain(m *testing.M) {
	child.Main(roles)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		stop()
		os.Exit(130)
	}()
	status := m.Run()
	stop()
	os.Exit(status)
}
