package conformance

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/retry"
)

// outcomes counts the outcomes of each message, by its id.
type outcomes struct {
	mu  sync.Mutex
	all map[string]map[retry.Outcome]int
}

// Event implements retry.Observer.
func (o *outcomes) Event(e retry.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[e.MessageUUID] == nil {
		o.all[e.MessageUUID] = map[retry.Outcome]int{}
	}
	o.all[e.MessageUUID][e.Outcome]++
}

// of counts the messages that begin so and had an outcome.
func (o *outcomes) of(prefix string, outcome retry.Outcome) (messages int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, had := range o.all {
		if strings.HasPrefix(id, prefix) && had[outcome] > 0 {
			messages++
		}
	}
	return messages
}

// tenants: the messages of one tenant fail. Its key pauses alone: its messages wait, and none of their failures counts,
// while one of another tenant is handled. When it is healthy again, all of them are handled.
func tenants(t *testing.T, f *fixture) {
	const first, late = 4, 10
	config, topics := f.app(300*time.Millisecond, 500*time.Millisecond, 700*time.Millisecond), f.topics(1)
	tenantOf := func(msg *message.Message) string { tenant, _, _ := strings.Cut(msg.UUID, " "); return tenant }
	config.Policy.Breaker = &retry.Breaker{Key: tenantOf, Least: 2, Pause: time.Second}
	seen := &outcomes{all: map[string]map[retry.Outcome]int{}}
	var healthy atomic.Bool
	a := f.connect(config, topics, nil)
	a.Observe(seen)
	a.handle("billing", topics[0], func(msg *message.Message) error {
		if tenantOf(msg) == "7" && !healthy.Load() {
			return errDown
		}
		if one := f.ledger.add(msg); strings.Contains(one.id, "late") {
			assert.Zero(t, one.failures, "%s was not tried before its key paused", one.id)
		}
		return nil
	}).run()
	publish := func(name string, n int) {
		for _, id := range ids(n) {
			a.publishTo(topics[0], name+" "+id)
		}
	}
	state := func() (handler []string, of7 string) {
		s := a.Health().Subscriptions[0]
		return s.Paused, s.Keys["7"].Paused
	}

	publish("7 first", first)
	f.eventually("the key pauses", func() bool { _, of7 := state(); return of7 == "failing" })
	publish("7 late", late)
	f.eventually("the messages of the key wait", func() bool { return seen.of("7 late", retry.Parked) == late })
	publish("8", 1)
	f.await(1, 0)
	handler, of7 := state()
	assert.Empty(t, handler, "the handler goes on")
	assert.Equal(t, "failing", of7)
	assert.Zero(t, seen.of("8", retry.Parked), "others do not wait")

	healthy.Store(true)
	f.await(1+first+late, 0)
	f.settle()
	assert.Zero(t, seen.of("", retry.DeadLettered))
	if f.Expect.Letters != registry.NoLetters {
		assert.Empty(t, f.letters(config, "billing", topics[0]))
	}
}
