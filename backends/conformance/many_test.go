package conformance

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
)

// many is how many messages are due together.
const many = 2000

// dueTogether: many messages fail once, and all retries are due at the same time. None is lost or early, and nothing is
// left on the server. Where only the delays of the schedule are exact, each is due its delay after its failure. How
// late and how early a retry is counts from two times, by the worse of them: the due time of its failure record, and
// that of this test, which is the requested time, or the delay after the call that failed.
func dueTogether(t *testing.T, f *fixture) {
	const delay = 4 * time.Second
	topics, app := f.topics(1), f.app(delay)
	app.Lease = 0
	var due atomic.Pointer[time.Time]
	a := f.connect(app, topics, nil)
	counted := &copies{}
	a.Observe(counted)
	for i, topic := range topics {
		a.handle(handlerName(i), topic, func(msg *message.Message) error {
			if f.ledger.add(msg).failures > 0 {
				return nil
			}
			if f.Expect.Tiers {
				return errDown
			}
			at := time.Now().Add(delay)
			due.CompareAndSwap(nil, &at)
			return backoff.RetryAfter(errDown, time.Until(*due.Load()))
		})
	}
	a.run()
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
	early, apart, requested := 0, 0, map[string]time.Time{}
	for _, one := range f.ledger.first(0) {
		requested[one.id] = one.at.Add(delay)
		switch at := due.Load(); {
		case at == nil:
		case one.at.Before(*at):
			requested[one.id] = *at
		default: // a slow machine: there is no time left to request
			apart++
		}
	}
	for _, one := range f.ledger.first(1) {
		recorded, asked := one.at.Round(0).Sub(one.record.DueAt), one.at.Round(0).Sub(requested[one.id].Round(0))
		after := min(recorded, asked)
		if f.Expect.Clock.Early(delay, delay+after, delay+after) > 0 {
			early++
		}
		late = append(late, max(recorded, asked))
	}
	f.zero("early", early, "retries were early")
	slices.Sort(late)
	p99 := late[len(late)*99/100]
	// Before they failed they were read one after the other, too, and each of them published a copy.
	failing := slices.MaxFunc(f.ledger.first(0), byTime).at.Sub(slices.MinFunc(f.ledger.first(0), byTime).at)
	bound := 10*failing + delay // one that is not read together with others is later than both
	t.Logf("late: median %v, p99 %v, maximum %v; bound of the p99: %v; %d were not due together", late[len(late)/2], p99,
		late[len(late)-1], bound, apart)
	f.score.set("p99_ms", fmt.Sprintf("%.0f", float64(p99)/float64(time.Millisecond)))
	assert.Less(t, p99, bound)
	f.settle()

	left := -1
	defer func() { // also where something stays
		if left >= 0 {
			f.score.add("left", left)
		}
	}()
	f.eventually("nothing is left", func() bool {
		var err error
		left, err = f.backend.Left(noContext, app, topics)
		require.NoError(t, err)
		return left == 0
	})

	// a copy that is published twice is a duplicate, and counts
	published := (counted.Load() + many - 1) / many
	if f.Expect.Relayed {
		published = publishesOfRelay(t, 0, time.Hour)
	}
	f.score.add("publishes_per_hour", int(published))
	assert.LessOrEqual(t, published, int64(2))
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
