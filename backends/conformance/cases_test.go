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
	topics := f.topics(4)
	app := f.app(300*time.Millisecond, 900*time.Millisecond, 600*time.Millisecond)
	f.run(app, topics, f.ledger.failing(3))
	f.publish(topics, ids(messages)...)
	f.await(messages, 3, patience)
	f.checkNeverEarly(app.Policy.Schedule)
	for id, tries := range f.ledger.all() {
		var failures []int
		for _, one := range tries {
			if !slices.Contains(failures, one.failures) { // duplicates are allowed
				failures = append(failures, one.failures)
			}
		}
		assert.Equal(t, []int{0, 1, 2, 3}, failures, "message %s", id)
	}
	f.settle()
}

// overtakes: the message with the long requested delay fails first, and comes back last.
func overtakes(t *testing.T, f *fixture) {
	topics := f.topics(1)
	const long = 10 * time.Second // a server under load takes seconds for the short one
	app := f.app(300*time.Millisecond, long)
	f.run(app, topics, func(msg *message.Message) error {
		switch one := f.ledger.add(msg); {
		case one.failures > 0:
			return nil
		case one.id == "long":
			return backoff.RetryAfter(errDown, long)
		default:
			return errDown
		}
	})
	f.publish(topics, "long", "short")
	f.await(2, 1, patience)
	back := func(id string) time.Time {
		for _, one := range f.ledger.all()[id] {
			if one.failures == 1 {
				return one.at
			}
		}
		return time.Time{}
	}
	assert.Less(t, back("short"), back("long"))
	f.settle()
}
