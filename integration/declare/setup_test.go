// Package declare_test changes the topology of an app while it consumes.
package declare_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/door"
)

const soon = 60 * time.Second // much longer than any of it takes

func TestMain(m *testing.M) {
	door.TurnPeriod = 2 * time.Second // of the checks of bindings
	door.OverduePeriod = time.Second  // several looks see the same figures, which are up to 5 s old
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // most of these tests wait for a look
	m.Run()
}

type app struct {
	*testapp.App
	t testing.TB
}

func connect(t testing.TB, change ...func(*config.Config)) *app {
	t.Helper()
	return &app{App: testapp.New(t, change...), t: t}
}

// handle adds handlers that fail at the first try of each message.
func (a *app) handle(queue string, handlers int, processed *testapp.Ledger) {
	for i := range handlers {
		a.AddConsumerHandler(a.Router, fmt.Sprintf("%s/%d", queue, i), queue, processed.HandleRetries)
	}
}
