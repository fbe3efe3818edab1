package observe_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/observe"
)

// asked is an app whose Waiting counts its calls.
type asked struct {
	*app
	registry *prometheus.Registry
	calls    atomic.Int64
	answer   func(context.Context) ([]backend.Waiting, error)
}

func ask(t *testing.T, config observe.Config) *asked {
	t.Helper()
	a := &asked{app: newApp(t)}
	a.answer = func(context.Context) ([]backend.Waiting, error) {
		return []backend.Waiting{{Kind: backend.WaitingDead, Queue: "dead", Messages: int(a.calls.Load())}}, nil
	}
	a.waiting = func(ctx context.Context) ([]backend.Waiting, error) {
		a.calls.Add(1)
		return a.answer(ctx)
	}
	a.registry = register(t, config, a.app)
	return a
}

// scrape reads the metrics, and waits until the look that it has begun, if any, ends or waits.
func (a *asked) scrape() {
	a.t.Helper()
	scrape(a.t, a.registry)
	synctest.Wait()
}

// check compares the next scrape, and then the calls of Waiting: the scrape may begin one.
func (a *asked) check(waiting, age string, calls int) {
	a.t.Helper()
	var want, wantAge []string
	if waiting != "" {
		want = []string{`{kind="dead",queue="dead",tier=""} ` + waiting}
	}
	if age != "" {
		wantAge = []string{" " + age}
	}
	text := scrape(a.t, a.registry)
	assert.Equal(a.t, want, samplesOf(text, "watermill_retry_waiting"))
	assert.Equal(a.t, wantAge, samplesOf(text, "watermill_retry_waiting_age_seconds"))
	synctest.Wait()
	assert.EqualValues(a.t, calls, a.calls.Load(), "calls of Waiting")
}

func TestWhatWaitsIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{})
		a.answer = func(context.Context) ([]backend.Waiting, error) {
			now := time.Now()
			return []backend.Waiting{
				{Kind: backend.WaitingTier, Queue: "retry.1s", Tier: backoff.Tier(time.Second), Messages: 7, NextDue: now.Add(time.Second)},
				{Kind: backend.WaitingInbox, Queue: "retry.inbox"},
				{Kind: backend.WaitingWork, Queue: topic, Messages: 3},
				{Kind: backend.WaitingDead, Queue: "dead", Messages: 2},
				{Kind: backend.WaitingOrphans, Queue: "orphans", Messages: 1},
			}, nil
		}
		a.scrape()
		time.Sleep(10 * time.Second)
		for name, want := range map[string][]string{
			"waiting": {
				`{kind="dead",queue="dead",tier=""} 2.0`, `{kind="inbox",queue="retry.inbox",tier=""} 0.0`, `{kind="orphans",queue="orphans",tier=""} 1.0`,
				`{kind="tier",queue="retry.1s",tier="1s"} 7.0`, `{kind="work",queue="orders",tier=""} 3.0`,
			},
			"waiting_due_seconds": {`{queue="retry.1s",tier="1s"} 0.0`}, // it is not below 0
			"waiting_age_seconds": {" 10.0"},
		} {
			assert.Equal(t, want, samples(t, a.registry, "watermill_retry_"+name), name)
		}
	})
}

// TestALookIsInTheBackground: a read gets the figures of the last look, and nothing before the first.
func TestALookIsInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{})
		synctest.Wait()
		assert.Zero(t, a.calls.Load(), "nothing is asked before the first read")
		a.check("", "0.0", 1)
		a.check("1.0", "0.0", 1)
		time.Sleep(29 * time.Second)
		a.check("1.0", "29.0", 1)
		time.Sleep(time.Second)
		a.check("1.0", "30.0", 2)
		a.check("2.0", "0.0", 2)
		time.Sleep(time.Hour)
		a.check("2.0", "3600.0", 3)
	})
}

// TestASlowLookIsFollowedByAPause: of 20 times its duration. One look is under way at most.
func TestASlowLookIsFollowedByAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{WaitingEvery: time.Second, WaitingTimeout: time.Minute})
		answer := a.answer
		a.answer = func(ctx context.Context) ([]backend.Waiting, error) {
			deadline, _ := ctx.Deadline()
			assert.Equal(t, time.Minute, time.Until(deadline))
			time.Sleep(5 * time.Second)
			return answer(ctx)
		}
		a.check("", "0.0", 1)
		time.Sleep(4 * time.Second)
		a.check("", "4.0", 1) // since the Connection was attached
		time.Sleep(time.Second)
		synctest.Wait()
		a.check("1.0", "0.0", 1)
		time.Sleep(99 * time.Second)
		a.check("1.0", "99.0", 1)
		time.Sleep(time.Second)
		a.check("1.0", "100.0", 2)
		time.Sleep(time.Minute)
	})
}

// TestAFailedLookIsLoggedOnce: the last figures stay. The next failure after an answer is logged again.
func TestAFailedLookIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{})
		answer := a.answer
		next := func(answer func(context.Context) ([]backend.Waiting, error)) {
			a.answer = answer
			a.scrape()
			time.Sleep(time.Minute)
		}
		fails := func(context.Context) ([]backend.Waiting, error) { return nil, errors.New("the broker is away") }
		panics := func(context.Context) ([]backend.Waiting, error) { panic("of Waiting") }
		next(answer)
		next(fails)
		next(panics)
		next(fails)
		a.answer = answer
		require.Len(t, a.logged.errors(), 1)
		assert.Contains(t, a.logged.errors()[0], "the broker is away")
		a.check("1.0", "240.0", 5)
		a.check("5.0", "0.0", 5)
		time.Sleep(time.Minute)
		next(panics)
		next(fails)
		require.Len(t, a.logged.errors(), 2)
		assert.Contains(t, a.logged.errors()[1], "of Waiting")
	})
}

// TestALookThatHangsIsTheOnlyOne: also beyond its deadline. It is logged, and what it returns in the end counts.
func TestALookThatHangsIsTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{})
		answer, returns := a.answer, make(chan struct{})
		a.answer = func(ctx context.Context) ([]backend.Waiting, error) {
			deadline, _ := ctx.Deadline()
			assert.Equal(t, 10*time.Second, time.Until(deadline))
			<-returns
			return answer(ctx)
		}
		for minute := range 100 {
			a.check("", fmt.Sprintf("%d.0", 60*minute), 1)
			time.Sleep(time.Minute)
		}
		require.Len(t, a.logged.errors(), 1)
		assert.Contains(t, a.logged.errors()[0], "not returned at its deadline, 10s")
		close(returns)
		synctest.Wait()
		a.check("1.0", "0.0", 1)
	})
}

// TestTheEndOfAConnectionEndsItsLook: it is no failure.
func TestTheEndOfAConnectionEndsItsLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{})
		ended := false
		a.answer = func(ctx context.Context) ([]backend.Waiting, error) {
			<-ctx.Done()
			ended = true
			return nil, ctx.Err()
		}
		a.scrape()
		a.end()
		synctest.Wait()
		assert.True(t, ended)
		time.Sleep(time.Hour)
		a.check("", "", 1)
		assert.Empty(t, a.logged.errors())
	})
}

func TestNothingIsAskedWhereItIsTurnedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, observe.Config{WaitingEvery: -1})
		for range 3 {
			a.check("", "", 0)
			time.Sleep(time.Hour)
		}
	})
}
