package conformance

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// outlived: a call takes longer than the lease of its message, and then fails for good, once with a message of the
// topic and once with a retry. The handler is called again once at most, there is one dead letter, and the messages
// behind it are handled. A lease is renewed: such a call is the only one, unless this machine stood still.
func outlived(t *testing.T, f *fixture) {
	const behind = 10
	f.score.passes(t, "outlived")
	topics, app := f.topics(1), f.app(500*time.Millisecond)
	app.Lease = 2 * time.Second
	slow := map[string]int{"slow": 0, "slow retry": 1} // failures before the slow call
	for try := range 4 {
		slow[fmt.Sprint("again ", try)] = 0
		slow[fmt.Sprint("retry again ", try)] = 1
	}
	processes := 1
	if f.Expect.Leases() { // the other one would get a message whose lease is not renewed
		processes = 2
	}
	var dead atomic.Int32
	for range processes {
		router, retries := f.connect(app, topics, nil)
		retries.Observe(eventtest.OnEvent(func(e retry.Event) {
			if e.Outcome == retry.DeadLettered {
				dead.Add(1)
			}
		}))
		retries.AddConsumerHandler(router, "billing", topics[0], func(msg *message.Message) error {
			one := f.ledger.add(msg)
			before, isSlow := slow[one.id]
			switch {
			case !isSlow:
				return nil
			case one.failures < before:
				return errDown
			}
			time.Sleep(2*app.Lease + time.Second)
			return backoff.Permanent(errDown)
		}, oneInFlight)
		f.launch(router, retries)
	}
	f.publish(topics, "slow", "slow retry")
	f.publish(topics, ids(behind)...)
	f.await(behind+2, 0, patience)
	f.eventually("both are dead letters", func() bool { return dead.Load() >= 2 })
	f.publish(topics, "last") // what comes again has come before it
	f.eventually("the last message comes", func() bool { return len(f.ledger.all()["last"]) > 0 })

	calls := func(id string) (n int) {
		for _, one := range f.ledger.all()[id] {
			if one.failures == slow[id] {
				n++
			}
		}
		return n
	}
	for _, id := range []string{"slow", "slow retry"} {
		assert.LessOrEqual(t, calls(id), 2, "calls with the message %q", id)
	}
	assert.EqualValues(t, 2, dead.Load(), "one dead letter for each")
	if f.Expect.Letters != registry.NoLetters {
		assert.Len(t, f.letters(app, "billing", topics[0]), 2, "one dead letter for each")
	}
	if f.Expect.Leases() {
		for id, next := range map[string]string{"slow": "again ", "slow retry": "retry again "} {
			for try := 0; calls(id) > 1; try++ {
				require.Less(t, try, 4, "the lease of %q is renewed", id)
				letters := dead.Load()
				id = fmt.Sprint(next, try)
				f.publish(topics, id)
				f.eventually("it is a dead letter", func() bool { return dead.Load() > letters })
			}
		}
		stopped(t, f)
	}
}

// stopped: a process does not run for longer than the lease of a message of the topic and of a retry, in the middle of
// their calls. So the backend ends their contexts, and then the calls fail for good. There is one dead letter of each
// after two calls at most, and the messages behind them are handled, with another process and without one.
func stopped(t *testing.T, f *fixture) {
	for name, others := range map[string]int{"a process that stops": 0, "a process that stops beside another one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, f.Entry, f.url, f.score)
			const behind = 10
			slow := map[string]int{"slow": 0, "slow retry": 1} // failures before the slow call
			topics, app := []string{f.topic(0), f.topic(1)}, f.app(500*time.Millisecond)
			role := f.role(app, topics, "billing", 1)
			role.Permanent, role.Fails = slow, 0
			calls := func(id string) (n int) {
				for _, one := range f.ledger.all()[id] {
					if one.failures == slow[id] {
						n++
					}
				}
				return n
			}
			called := func(times int) func() bool {
				return func() bool { return calls("slow") >= times && calls("slow retry") >= times }
			}
			victim := role
			victim.Outlives = true
			all := f.start(f.ledger, victim)
			f.publish(topics, "slow", "slow retry")
			f.eventually("both calls run", called(1))
			all = append(all, f.start(f.ledger, slices.Repeat([]process.Role{role}, others)...)...)
			all[0].pause()
			f.publish(topics, ids(2*behind)...)
			if others > 0 {
				f.eventually("the other process has both messages", called(2))
			} else {
				time.Sleep(2 * app.Lease) // nothing shows the end of a lease that no process waits for
			}
			all[0].resume()
			f.eventually("the contexts have ended", func() bool { return all[0].outlived.Load() == 2 })
			f.await(2*behind+len(slow), 0, patience)
			for i, id := range []string{"slow", "slow retry"} {
				f.eventually("it is a dead letter", func() bool { return len(f.letters(app, "", topics[i])) > 0 })
				assert.LessOrEqual(t, calls(id), 2, "calls with the message %q", id)
			}
			stopAll(all) // what they have in flight is settled then
			for i, id := range []string{"slow", "slow retry"} {
				if found := f.letters(app, "", topics[i]); assert.Len(t, found, 1, "dead letters of %q", id) {
					assert.Equal(t, id, found[0].ID)
					assert.Equal(t, slow[id]+1, found[0].Record.Failures)
				}
			}
		})
	}
}

// letters returns the dead letters of a handler. There may be no queue or topic before the first.
func (f *fixture) letters(app pubsub.App, handler, topic string) (found []*letters.Letter) {
	f.t.Helper()
	store, err := f.backend.Letters(app)
	if !assert.NoError(f.t, err) {
		return nil
	}
	defer func() { assert.NoError(f.t, store.Close()) }()
	for letter, err := range store.Browse(noContext, f.backend.DeadTopic(app, handler, topic), letters.Filter{}) {
		if errors.Is(err, letters.ErrNoQueue) || !assert.NoError(f.t, err) {
			return found
		}
		found = append(found, letter)
	}
	return found
}
