package conformance

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

var noContext = context.Background()

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = id(i)
	}
	return all
}

// lateness measures how long after its due time a retry comes, with 4 handlers and 100 failures per second.
func lateness(t *testing.T, f *fixture) {
	const messages = 200
	topics := f.topics(4)
	app := f.app(500 * time.Millisecond)
	f.run(app, topics, f.ledger.failing(1))
	publisher, err := f.backend.Publisher()
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range messages {
		<-tick.C
		require.NoError(t, publisher.Publish(topics[i%len(topics)], message.NewMessage(id(i), []byte("order"))))
	}
	f.comeBack(messages, 1, app.Schedule)

	var late []time.Duration
	for _, tries := range f.ledger.all() {
		for _, one := range tries {
			if one.failures == 1 {
				late = append(late, one.at.Sub(one.record.DueAt))
				break
			}
		}
	}
	slices.Sort(late)
	f.score.p99 = late[len(late)*99/100]
	t.Logf("lateness: median %v, p99 %v, maximum %v; bound of the p99: %v", late[len(late)/2], f.score.p99, late[len(late)-1], f.Expect.Lateness)
	assert.Less(t, f.score.p99, f.Expect.Lateness)
}

// delays: the delays of a schedule come in its order.
func delays(t *testing.T, f *fixture) {
	const messages = 30
	topics := f.topics(4)
	app := f.app(300*time.Millisecond, 900*time.Millisecond, 600*time.Millisecond)
	f.run(app, topics, f.ledger.failing(3))
	f.publish(topics, ids(messages)...)
	f.await(messages, 3, patience)
	f.checkNeverEarly(app.Schedule)
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

// fanOut: a retry goes to the handler that failed, and to no other group.
func fanOut(t *testing.T, f *fixture) {
	const messages = 20
	topics := f.topics(1)
	billing := f.app(200 * time.Millisecond)
	shipping := billing
	shipping.Group, shipping.Prefix = "h"+f.name, "q"+f.name

	shipped := newLedger()
	f.run(shipping, topics, shipped.failing(0))
	f.run(billing, topics, f.ledger.failing(1))
	f.publish(topics, ids(messages)...)
	f.await(messages, 1, patience)
	f.publish(topics, "last") // when this message arrives, all earlier messages of the topic have arrived
	for id, tries := range f.withoutRetries(shipped, messages+1) {
		assert.Len(t, tries, 1, "message %s", id)
	}
	f.settle()
}

// withoutRetries waits for the last message of a group, and returns what the group got: all messages, and no retry of
// another group.
func (f *fixture) withoutRetries(group *ledger, messages int) map[string][]try {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return len(group.all()["last"]) > 0 }, patience, 10*time.Millisecond)
	all := group.all()
	assert.Len(f.t, all, messages)
	for id, tries := range all {
		for _, one := range tries {
			assert.Zero(f.t, one.failures, "the other group got a retry of %s", id)
		}
	}
	return all
}

// longTier: a tier of 10 seconds, on a server that delivers a message again after 2 seconds without an ack. The relay hops.
func longTier(t *testing.T, f *fixture) {
	const messages = 20
	topics := f.topics(2)
	app := f.app(10 * time.Second)
	app.MaxHop, app.Limit = time.Second, 2*time.Second
	hops := &hopCounter{topic: app.Prefix + ".10s"}
	app.Hook = hops
	f.run(app, topics, f.ledger.failing(1))
	f.publish(topics, ids(messages)...)
	f.await(messages, 1, patience)
	f.checkNeverEarly(app.Schedule)
	if n := hops.Load(); f.Expect.Relayed {
		assert.Greater(t, n, int64(messages*2), "a hop takes a second, or several on a slow machine")
	}
	f.settle()
}

// hopCounter counts the publishes to a tier.
type hopCounter struct {
	atomic.Int64
	topic string
}

func (h *hopCounter) BeforeCopy(topic string) {
	if topic == h.topic {
		h.Add(1)
	}
}

func (*hopCounter) AfterCopy(string) {}

// busy lets two backends at a time run the case volume: they need a core each.
var busy = make(chan struct{}, 2)

// volume: 1000 messages fail once, and all come back.
func volume(t *testing.T, f *fixture) {
	busy <- struct{}{}
	defer func() { <-busy }()
	const messages = 1000
	topics := f.topics(16)
	app := f.app(500 * time.Millisecond)
	app.Limit, app.HandlerLimit = 30*time.Second, 30*time.Second
	f.run(app, topics, f.ledger.failing(1))
	began := time.Now()
	var publishers sync.WaitGroup
	for part := range slices.Chunk(ids(messages), messages/8) {
		publishers.Go(func() { assert.NoError(t, f.send(topics, part)) })
	}
	publishers.Wait()
	f.await(messages, 1, 2*patience)
	t.Logf("%d messages failed once and came back, all within %v", messages, time.Since(began).Round(time.Millisecond))
	f.checkNeverEarly(app.Schedule)
	f.settle()
}

// restart: the app stops while its messages wait.
func restart(t *testing.T, f *fixture) {
	const messages = 50
	topics := f.topics(4)
	app := f.app(2 * time.Second)
	handle := f.ledger.failing(1)
	var failed atomic.Int32
	app.Observer = eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.Retried {
			failed.Add(1)
		}
	})
	first := f.run(app, topics, handle)
	f.publish(topics, ids(messages)...)
	require.Eventually(t, func() bool { return failed.Load() >= messages }, patience, time.Millisecond)
	assert.Less(t, f.ledger.reached(1), messages, "the app must stop before the delay is over")
	first.stop()

	f.run(app, topics, handle)
	f.comeBack(messages, 1, app.Schedule)
}
