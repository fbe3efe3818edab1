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

// overtakes: the message with the long requested delay fails first, and comes back last.
func overtakes(t *testing.T, f *fixture) {
	const long = 10 * time.Second // a server under load takes seconds for the short one
	topics := f.topics(1)
	f.run(f.app(300*time.Millisecond, long), topics, func(msg *message.Message) error {
		err := f.ledger.failing(1)(msg)
		if err != nil && msg.UUID == "long" {
			return backoff.RetryAfter(err, long)
		}
		return err
	})
	f.publish(topics, "long", "short")
	f.await(2, 1)
	assert.Equal(t, "long", slices.MaxFunc(f.ledger.first(1), byTime).id)
	f.settle()
}

func byTime(a, b try) int { return a.at.Compare(b.at) }
