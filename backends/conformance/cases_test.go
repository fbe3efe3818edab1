package conformance

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

var noContext = context.Background()

// oneInFlight is what every backend has.
var oneInFlight = retry.Options{Concurrency: 1}

// delays: the delays of a schedule come in its order.
func delays(t *testing.T, f *fixture) {
	const messages = 30
	topics, config := f.topics(4), f.app(300*time.Millisecond, 900*time.Millisecond, 600*time.Millisecond)
	f.run(config, topics, f.ledger.failing(3))
	f.publish(topics, ids(messages)...)
	f.comeBack(messages, 3, config.Policy.Schedule)
	for id, tries := range f.ledger.all() {
		var failures []int
		for _, one := range tries {
			if !slices.Contains(failures, one.failures) { // duplicates are allowed
				failures = append(failures, one.failures)
			}
		}
		assert.Equal(t, []int{0, 1, 2, 3}, failures, "message %s", id)
	}
}

// overtakes: a message comes back while another one, which failed before it, waits for an hour.
func overtakes(t *testing.T, f *fixture) {
	topics, config, counted := f.topics(1), f.app(300*time.Millisecond, time.Hour), &copies{}
	a := f.connect(config, topics, nil)
	a.Observe(counted)
	a.handle("billing", topics[0], func(msg *message.Message) error {
		err := f.ledger.failing(1)(msg)
		if err != nil && msg.UUID == "long" {
			return backoff.RetryAfter(err, time.Hour)
		}
		return err
	}).run()
	f.publish(topics, "long")
	f.eventually("it waits", func() bool { return counted.Load() > 0 })
	f.publish(topics, "short")
	f.await(1, 1)
	assert.Len(t, f.ledger.of("long"), 1)
}
