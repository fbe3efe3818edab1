package conformance

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
)

// many is how many messages are due together.
const many = 2000

// dueTogether: many messages fail once, and all retries are due at the same time. None is lost or early, and nothing is
// left on the server. Where only the delays of the schedule are exact, each is due its delay after its failure.
func dueTogether(t *testing.T, f *fixture) {
	const delay = 4 * time.Second
	topics, app, counted := f.topics(1), f.app(delay), &copies{}
	app.Lease = 0
	var due atomic.Pointer[time.Time]
	a := f.connect(app, topics, nil)
	a.Observe(counted)
	a.handle("billing", topics[0], func(msg *message.Message) error {
		if f.ledger.add(msg).failures > 0 {
			return nil
		}
		if f.Expect.Tiers {
			return errDown
		}
		at := time.Now().Add(delay)
		due.CompareAndSwap(nil, &at)
		return backoff.RetryAfter(errDown, time.Until(*due.Load()))
	}).run()
	f.publishMany(topics, ids(many))
	f.eventually("all wait", func() bool { return counted.Load() >= many })
	if at := due.Load(); at != nil && !f.Expect.Relayed && time.Until(*at) > time.Second {
		waiting, err := f.backend.Left(noContext, app, topics)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, waiting, many, "what is counted as left is what waits")
		assert.LessOrEqual(t, waiting, 2*many)
	}
	f.await(many, 1)

	var late []time.Duration
	requested := map[string]time.Time{}
	first := f.ledger.first(0)
	for _, one := range first {
		requested[one.id] = one.at.Add(delay)
		if at := due.Load(); at != nil && one.at.Before(*at) { // on a slow machine there is no time left to request
			requested[one.id] = *at
		}
	}
	for _, one := range f.ledger.first(1) {
		after := one.at.Round(0).Sub(requested[one.id].Round(0))
		assert.Zero(t, f.Expect.Clock.Early(delay, delay+after, delay+after), "message %s is early", one.id)
		late = append(late, after)
	}
	slices.Sort(late)
	p99 := late[len(late)*99/100]
	// Before they failed they were read one after the other, too, and each of them published a copy.
	byTime := func(a, b try) int { return a.at.Compare(b.at) }
	failing := slices.MaxFunc(first, byTime).at.Sub(slices.MinFunc(first, byTime).at)
	bound := 10*failing + delay // one that is not read together with others is later than both
	t.Logf("late: median %v, p99 %v, maximum %v; bound of the p99: %v", late[len(late)/2], p99, late[len(late)-1], bound)
	assert.Less(t, p99, bound)
	f.nothingIsLeft(app, topics)
	assert.LessOrEqual(t, counted.Load(), int64(2*many), "a copy that is published twice is a duplicate")
}

// nothingIsLeft waits until the server has nothing of the retries.
func (f *fixture) nothingIsLeft(app pubsub.App, topics []string) {
	f.t.Helper()
	f.eventually("nothing is left", func() bool {
		left, err := f.backend.Left(noContext, app, topics)
		require.NoError(f.t, err)
		return left == 0
	})
}

// copies counts the copies that a Connection has published.
type copies struct {
	backend.NopObserver
	atomic.Int64
}

func (c *copies) Published(p backend.Published) {
	if p.Copy {
		c.Add(int64(p.Messages))
	}
}
