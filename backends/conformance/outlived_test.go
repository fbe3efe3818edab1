package conformance

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// outlived: a call takes longer than the lease of its message, and then fails for good, once with a message of the
// topic and once with a retry. The messages behind it are handled. A lease is renewed: such a call is the only one, and
// there is one dead letter. Where this machine stood still, it is called again, and each call may have had its lease when
// it began to publish. Such an attempt is not counted.
func outlived(t *testing.T, f *fixture) {
	if !f.Expect.Leases() {
		return
	}
	const behind, attempts = 10, 5
	topics, config := f.topics(1), f.app(500*time.Millisecond)
	config.Lease = 4 * time.Second
	slow, over := map[string]int{}, map[string]chan struct{}{} // failures before the slow call, and its end
	for n := range attempts {
		end := make(chan struct{})
		for failures, id := range []string{fmt.Sprint("slow ", n), fmt.Sprint("slow retry ", n)} {
			slow[id], over[id] = failures, end
		}
	}
	for range 2 { // the other one would get a message whose lease is not renewed
		f.connect(config, topics, nil).handle("billing", topics[0], func(msg *message.Message) error {
			one := f.ledger.add(msg)
			before, isSlow := slow[one.id]
			switch {
			case !isSlow:
				return nil
			case one.failures < before:
				return errDown
			}
			<-over[one.id]
			return backoff.Permanent(errDown)
		}, retry.Options{Concurrency: 2}).run()
	}
	for n := range attempts {
		both := []string{fmt.Sprint("slow ", n), fmt.Sprint("slow retry ", n)}
		f.publish(topics, both...)
		f.eventually("both calls run", func() bool { return f.calls(both[0], 0) > 0 && f.calls(both[1], 1) > 0 })
		f.awaitLease(config.Lease)
		close(over[both[0]])
		last := fmt.Sprint("last ", n) // what comes again has come before it
		f.publish(topics, append(ids(behind), last)...)
		dead := map[string]int{}
		f.eventually("both are dead letters", func() bool {
			clear(dead)
			for _, letter := range f.letters(config, topics[0]) {
				dead[letter.ID]++
			}
			return dead[both[0]] > 0 && dead[both[1]] > 0
		})
		f.await((behind+3)+(n*3), 0)
		calls := []int{f.calls(both[0], 0), f.calls(both[1], 1)}
		if slices.Max(calls) == 1 {
			assert.Equal(t, []int{1, 1}, []int{dead[both[0]], dead[both[1]]}, "one dead letter for each")
			break
		}
		require.Less(t, n+1, attempts, "the lease is renewed")
	}
	stopped(t, f)
}

// calls counts the calls with a message after so many failures.
func (f *fixture) calls(id string, failures int) (n int) {
	for _, one := range f.ledger.of(id) {
		if one.failures == failures {
			n++
		}
	}
	return n
}

// awaitLease waits until a lease that begins now has ended on the server: a message of a process that stops goes to
// another one.
func (f *fixture) awaitLease(lease time.Duration) {
	f.t.Helper()
	f = newFixture(f.t, f.Entry, f.url)
	topics, config := f.topics(1), f.app(time.Second)
	config.Lease = lease
	role := f.role(config, topics, "billing", 1)
	role.Permanent, role.Outlives = map[string]int{"control": 0}, true
	stops := f.start(f.ledger, role)[0]
	f.publish(topics, "control")
	f.await(1, 0)
	stops.pause()
	other := newLedger()
	a := f.run(config, topics, other.failing(0))
	other.await(f.t, 1, 0)
	a.stop()
	stops.Kill()
}

// stopped: a process does not run for longer than the lease of a message of the topic and of a retry, in the middle of
// their calls. So the backend ends their contexts, and then the calls fail for good. There is one dead letter of each
// after two calls at most, and the messages behind them are handled, with another process and without one.
func stopped(t *testing.T, f *fixture) {
	for name, others := range map[string]int{"a process that stops": 0, "a process that stops beside another one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, f.Entry, f.url)
			const behind = 10
			slow := []string{"slow", "slow retry"} // with so many failures before the slow call
			topics, config := []string{f.topic(0), f.topic(1)}, f.app(500*time.Millisecond)
			role := f.role(config, topics, "billing", 1)
			role.Permanent, role.Fails = map[string]int{slow[0]: 0, slow[1]: 1}, 0
			called := func(times int) func() bool {
				return func() bool { return f.calls(slow[0], 0) >= times && f.calls(slow[1], 1) >= times }
			}
			victim := role
			victim.Outlives = true
			all := f.start(f.ledger, victim)
			f.publish(topics, slow...)
			f.eventually("both calls run", called(1))
			all = append(all, f.start(f.ledger, slices.Repeat([]process.Role{role}, others)...)...)
			all[0].pause()
			f.publish(topics, ids(2*behind)...)
			if others > 0 {
				f.eventually("the other process has both messages", called(2))
			} else {
				f.awaitLease(config.Lease)
			}
			all[0].resume()
			f.eventually("the contexts have ended", func() bool { return all[0].outlived.Load() == 2 })
			f.await(2*behind+len(slow), 0)
			for i, id := range slow {
				f.eventually("it is a dead letter", func() bool { return len(f.letters(config, topics[i])) > 0 })
				assert.LessOrEqual(t, f.calls(id, i), 2, "calls with the message %q", id)
			}
			stopAll(all) // what they have in flight is settled then
			for i, id := range slow {
				if found := f.letters(config, topics[i]); assert.Len(t, found, 1, "dead letters of %q", id) {
					assert.Equal(t, id, found[0].ID)
					assert.Equal(t, i+1, found[0].Record.Failures)
				}
			}
		})
	}
}

// letters returns the dead letters of a handler. There may be no queue or topic before the first.
func (f *fixture) letters(app pubsub.App, topic string) (found []*letters.Letter) {
	f.t.Helper()
	store, err := f.backend.Letters(app)
	if !assert.NoError(f.t, err) {
		return nil
	}
	defer func() { assert.NoError(f.t, store.Close()) }()
	for letter, err := range store.Browse(noContext, f.backend.DeadTopic(app, topic), letters.Filter{}) {
		if errors.Is(err, letters.ErrNoQueue) || !assert.NoError(f.t, err) {
			return found
		}
		found = append(found, letter)
	}
	return found
}
