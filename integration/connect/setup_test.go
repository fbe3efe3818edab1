// Package connect_test has whole apps on Connect, on a broker.
package connect_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

const soon = 60 * time.Second // much longer than any of it takes

var errDown = errors.New("the bank is down")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(broker.LeaksOfProxies(),
		// A router whose Run returns an error waits for its handlers, which never run.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"),
	)...)
}

// A diary has entries in their order.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) add(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.entries)
}
