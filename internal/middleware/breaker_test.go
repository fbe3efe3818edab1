package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/gate"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// valve keeps the limits that it got, and has the places.
type valve struct {
	mu     sync.Mutex
	limits []int
	pauses int // so far
	taken  int // by the messages that were delivered since the last pause
}

func (v *valve) take() (settle func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	pauses := v.pauses
	v.taken++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.pauses == pauses {
			v.taken--
		}
	}
}

func (v *valve) Taken() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.taken
}

func (v *valve) Limit(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.limits = append(v.limits, n); n == 0 {
		v.pauses, v.taken = v.pauses+1, 0
	}
}

func (v *valve) all() []int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.limits)
}

// breakered is a handler whose subscription follows its gate: the test decides when it gets messages.
type breakered struct {
	t     *testing.T
	retry *retrymw.TieredRetry
	sent  *recorder
	gate  *gate.Gate
	valve *valve
	ctx   context.Context
}

// withBreaker returns a handler with a breaker of 10 messages in 10 seconds.
func withBreaker(t *testing.T, concurrency int, change ...func(*settings)) *breakered {
	t.Helper()
	b := &breakered{t: t, gate: gate.New(concurrency), valve: &valve{}}
	b.retry, b.sent = setup(t, append([]func(*settings){tiersWait, func(c *settings) {
		c.Policy.Breaker = &retry.Breaker{Least: 10, MaxPause: 8 * time.Second}
	}}, change...)...)
	b.gate.Attach(b.valve)
	b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{Gate: b.gate})
	return b
}

// afterAPause returns a handler that lets its first probe through.
func afterAPause(t *testing.T, concurrency int, change ...func(*settings)) *breakered {
	t.Helper()
	b := withBreaker(t, concurrency, change...)
	b.outcomes(repeat(errDown, 10)...)
	b.paused()
	return b
}

// handle handles a message.
func (b *breakered) handle(h message.HandlerFunc) error { return b.sendTo("", h) }

// outcomes handles one message for each error.
func (b *breakered) outcomes(errs ...error) {
	b.t.Helper()
	for _, err := range errs {
		require.NoError(b.t, b.handle(failing(err)))
	}
}

// start begins a message, and returns a function that ends it.
func (b *breakered) start() (end func(error)) {
	ends, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.handle(func(*message.Message) ([]*message.Message, error) { return nil, <-ends })
	}()
	synctest.Wait()
	return func(err error) {
		ends <- err
		<-ended
	}
}

// paused waits for the end of the pause, and returns how long that took.
func (b *breakered) paused() time.Duration {
	b.t.Helper()
	begin := time.Now()
	for range 100_000 {
		synctest.Wait()
		if b.gate.Limit() != 0 {
			return time.Since(begin)
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.Fail(b.t, "it stays paused")
	return 0
}

func repeat(err error, n int) []error { return slices.Repeat([]error{err}, n) }

// assertPause compares a pause with the wanted one, which is shortened at random, by up to a quarter.
func assertPause(t *testing.T, want, got time.Duration) {
	t.Helper()
	assert.LessOrEqual(t, got, want+20*time.Millisecond)
	assert.GreaterOrEqual(t, got, want*3/4-20*time.Millisecond)
}

func TestBreakerPausesAtItsRatio(t *testing.T) {
	mixed := append(repeat(nil, 11), repeat(errDown, 10)...)
	for name, row := range map[string]struct {
		before, last []error
		paused       bool
		change       func(*settings)
	}{
		"least":                {repeat(errDown, 9), repeat(errDown, 1), true, nil},
		"fewer than least":     {nil, repeat(errDown, 9), false, nil},
		"below the ratio":      {nil, mixed, false, nil},
		"at the ratio":         {mixed, repeat(errDown, 1), true, nil},
		"another ratio":        {append(repeat(nil, 2), repeat(errDown, 17)...), repeat(errDown, 1), true, func(c *settings) { c.Policy.Breaker.Ratio = 0.9 }},
		"below another ratio":  {nil, append(repeat(nil, 3), repeat(errDown, 20)...), false, func(c *settings) { c.Policy.Breaker.Ratio = 0.9 }},
		"permanent":            {nil, repeat(backoff.Permanent(errDown), 50), false, nil},
		"the app's own kind":   {nil, repeat(backoff.Permanent(errDown), 10), true, func(c *settings) { c.Policy.Breaker.Failed = func(error) bool { return true } }},
		"not the app's kind":   {nil, repeat(errDown, 50), false, func(c *settings) { c.Policy.Breaker.Failed = func(error) bool { return false } }},
		"kind panics":          {nil, repeat(errDown, 10), true, func(c *settings) { c.Policy.Breaker.Failed = func(error) bool { panic("bug") } }},
		"rule: retry after":    {nil, repeat(errDown, 10), true, rule(retry.RetryAfter(time.Second))},
		"rule: snooze":         {nil, repeat(errDown, 50), false, rule(retry.Snooze(time.Second))},
		"rule: dead-letter":    {nil, repeat(errDown, 50), false, rule(retry.DeadLetter("invalid"))},
		"no breaker":           {nil, repeat(errDown, 50), false, func(c *settings) { c.Policy.Breaker = nil }},
		"uncounted in between": {append(repeat(errDown, 9), repeat(backoff.Permanent(errDown), 100)...), repeat(errDown, 1), true, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			b := withBreaker(t, 16, row.change)
			b.outcomes(row.before...)
			assert.Empty(t, b.gate.Paused())
			b.outcomes(row.last...)
			if row.paused {
				assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused())
				assert.Equal(t, 1, strings.Count(b.sent.logs.String(), "Handler pauses"))
			} else {
				assert.Equal(t, []int{-1}, b.valve.all())
			}
			assert.LessOrEqual(t, strings.Count(b.sent.logs.String(), "Breaker.Failed panicked"), 1)
			assert.Equal(t, name == "kind panics", strings.Contains(b.sent.logs.String(), "Breaker.Failed panicked"))
		})
	}
}

// rule returns a configuration with one rule for errDown.
func rule(then retry.Action) func(*settings) {
	return func(c *settings) {
		c.Policy.Rules = []retry.Rule{{Name: "the bank", If: retry.Is(errDown), Then: then}}
	}
}

func TestBreakerCountsWithinItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16)
		for range 20 {
			b.outcomes(repeat(errDown, 9)...)
			time.Sleep(11 * time.Second)
		}
		assert.Equal(t, []int{-1}, b.valve.all())
	})
}

// docs/outages.md has the figures.
func TestHowManyFailuresPauseAHandler(t *testing.T) {
	for _, row := range []struct{ successes, failures int }{{0, 20}, {5, 15}, {10, 10}, {15, 15}, {20, 20}, {30, 30}, {50, 50}, {100, 50}, {1000, 50}} {
		bubble(t, fmt.Sprint(row.successes), func(t *testing.T) {
			b := withBreaker(t, 16, func(c *settings) { c.Policy.Breaker = &retry.Breaker{} })
			for range 3 {
				b.outcomes(repeat(nil, row.successes)...)
				failures := 0
				for ; b.gate.Limit() != 0; failures++ {
					b.outcomes(errDown)
				}
				assert.Equal(t, row.failures, failures)
				b.paused()
				b.outcomes(repeat(nil, 15)...)
			}
		})
	}
}

func TestPauseDoublesUpToMaxPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16)
		b.outcomes(repeat(errDown, 10)...)
		for i, want := range []time.Duration{1, 2, 4, 8, 8, 8} {
			assertPause(t, want*time.Second, b.paused())
			assert.Equal(t, 1, b.gate.Limit(), "one message is let through")
			time.Sleep(time.Hour)
			assert.Equal(t, 1, b.gate.Limit(), "nothing happens while no message arrives")
			b.outcomes(errDown)
			assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused())
			assert.Equal(t, i+1, strings.Count(b.sent.logs.String(), "Handler pauses again"))
		}
		b.paused()
		assert.NotContains(t, b.sent.logs.String(), "Handler goes on")
		b.outcomes(repeat(nil, 15)...)
		assert.Equal(t, gate.None, b.gate.Limit())
		assert.Equal(t, 1, strings.Count(b.sent.logs.String(), "Handler goes on"))
		assert.Contains(t, b.sent.logs.String(), "share:1.00")

		b.outcomes(repeat(errDown, 10)...)
		assertPause(t, time.Second, b.paused())
	})
}

func TestHandlerGoesOnStepByStep(t *testing.T) {
	for concurrency, want := range map[int][]int{
		1:  {-1, 0, 1, -1},
		2:  {-1, 0, 1, -1},
		3:  {-1, 0, 1, 2, -1},
		16: {-1, 0, 1, 2, 4, 8, -1},
		17: {-1, 0, 1, 2, 4, 8, 16, -1},
		0:  {-1, 0, 1, 2, 4, 8, 16, -1}, // not known
	} {
		synctest.Test(t, func(t *testing.T) {
			b := afterAPause(t, concurrency)
			for limit := b.gate.Limit(); limit > 0; limit = b.gate.Limit() {
				at := len(b.valve.all())
				if limit > 1 {
					b.outcomes(errDown) // one message always fails
				}
				b.outcomes(repeat(nil, limit-1)...)
				assert.Len(t, b.valve.all(), at, "as many successes as the limit are needed")
				b.outcomes(nil)
				assert.Len(t, b.valve.all(), at+1)
			}
			assert.Equal(t, want, b.valve.all(), "%d", concurrency)
			b.outcomes(repeat(errDown, 9)...)
			assert.Equal(t, gate.None, b.gate.Limit(), "the counts have begun again")
			b.outcomes(errDown)
			assert.Equal(t, 0, b.gate.Limit())
		})
	}
}

func TestRampEndsAtItsOwnRatio(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 64)
		b.outcomes(repeat(errDown, 40)...)
		b.paused()
		b.outcomes(repeat(nil, 3)...)
		require.Equal(t, 4, b.gate.Limit())
		b.outcomes(errDown, errDown, errDown)
		assert.Equal(t, 4, b.gate.Limit(), "three outcomes")
		b.outcomes(errDown)
		assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused())
		assertPause(t, 2*time.Second, b.paused())
	})
}

// With a few messages in the queue each of them is a probe again and again.
func TestFailureOfAProbeDoesNotCount(t *testing.T) {
	for name, row := range map[string]struct {
		err      error
		failures string
		tier     string
	}{
		"schedule":    {errDown, "1", "1s.orders"},
		"last try":    {errDown, "4", "1s.orders"},
		"retry after": {backoff.RetryAfter(errDown, time.Minute), "1", "1m.orders"},
	} {
		bubble(t, name, func(t *testing.T) {
			b := afterAPause(t, 16)
			msg := redelivered(each(b.ctx), b.sent.copies[9])
			msg.Metadata.Set(recordkey.Failures, row.failures)
			for i := range 10 {
				b.paused()
				handles(t, b.retry.Dispatch(failing(row.err)), msg)
				sent := b.sent.last()
				assert.Equal(t, []string{row.tier, row.failures, fmt.Sprint(i + 1)},
					[]string{sent.topic, sent.msg.Metadata[recordkey.Failures], sent.msg.Metadata[recordkey.Snoozes]})
				msg = redelivered(each(b.ctx), sent)
			}
		})
	}
}

func TestMessagesInFlightAtAPauseSayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16)
		good, bad := b.start(), b.start()
		b.outcomes(repeat(errDown, 10)...)
		b.paused()
		good(nil)
		assert.Equal(t, 1, b.gate.Limit(), "a success from before the pause")
		bad(errDown)
		assert.Equal(t, 1, b.gate.Limit(), "a failure from before the pause")
		assert.Equal(t, "1", b.sent.copies[10].msg.Metadata.Get(recordkey.Failures), "it counts for the message")
	})
}

func TestProbeThatDoesNotReturn(t *testing.T) {
	for name, concurrency := range map[string]int{"": 16, "the concurrency is not known": 0} {
		bubble(t, name, func(t *testing.T) {
			b := afterAPause(t, concurrency)
			first := b.start()
			time.Sleep(7900 * time.Millisecond)
			assert.Equal(t, 1, b.gate.Limit())
			time.Sleep(200 * time.Millisecond)
			assert.Equal(t, 2, b.gate.Limit(), "after MaxPause one message more")
			time.Sleep(time.Hour)
			assert.Equal(t, 2, b.gate.Limit(), "none has come")
			second := b.start()
			time.Sleep(9 * time.Second)
			assert.Equal(t, 3, b.gate.Limit())
			assert.Equal(t, 2, strings.Count(b.sent.logs.String(), "one message more is let through"))
			third := b.start()
			third(errDown)
			assert.Equal(t, 0, b.gate.Limit())
			b.paused()
			assert.Equal(t, 1, b.gate.Limit(), "messages from before the pause take no place")
			first(nil)
			second(nil)
			assert.Equal(t, 1, b.gate.Limit())

			first = b.start()
			time.Sleep(9 * time.Second)
			second = b.start()
			time.Sleep(9 * time.Second)
			assert.Equal(t, 3, b.gate.Limit())
			second(backoff.Permanent(errDown))
			assert.Equal(t, 2, b.gate.Limit())
			b.outcomes(nil)
			assert.Equal(t, 3, b.gate.Limit(), "2 and the first")
			first(nil)
			assert.Equal(t, 2, b.gate.Limit())
			b.outcomes(nil)
			assert.Equal(t, 4, b.gate.Limit())
		})
	}
}

// produces ends as a router does that publishes, or cannot publish, what the handler has produced.
func (b *breakered) produces(published bool) {
	msg := messageOf(each(b.ctx))
	defer b.valve.take()()
	_, err := b.retry.Dispatch(producing(1))(msg)
	require.NoError(b.t, err)
	if published {
		msg.Ack()
	} else {
		msg.Nack()
	}
	synctest.Wait()
}

func TestBreakerCountsAMessageThatIsNotPublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16, func(c *settings) { c.Policy.Breaker.Ratio = 0.6 })
		notPublished := func() { // it comes to the middleware twice
			b.produces(false)
			b.outcomes(retry.ErrNotPublished)
		}
		for range 9 {
			notPublished()
		}
		assert.Equal(t, gate.None, b.gate.Limit())
		notPublished()
		assert.Equal(t, 0, b.gate.Limit())
		b.paused()
		notPublished()
		assert.Equal(t, 0, b.gate.Limit(), "a probe that fails")
		b.paused()
		for range 15 {
			b.produces(true)
		}
		assert.Equal(t, gate.None, b.gate.Limit())
	})
}

// The broker delivers the message again: it does not come to the middleware as a failure.
func TestBreakerCountsAForeignMessageThatIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbound(t)
		b.valve = &valve{}
		for range 9 {
			b.produces(false)
		}
		begin := time.Now()
		b.produces(false)
		assert.Zero(t, time.Since(begin))
		b.produces(true)
		assert.Positive(t, time.Since(begin), "the handler is paused")
	})
}

func TestRulePausesAtOnce(t *testing.T) {
	for name, configured := range map[string]*retry.Breaker{"without Breaker": nil, "with Breaker": {MaxPause: 8 * time.Second}} {
		bubble(t, name, func(t *testing.T) {
			b := withBreaker(t, 16, rule(retry.Pause(3*time.Second)), func(c *settings) {
				c.Policy.Breaker = configured
				if configured == nil {
					c.Policy.Schedule = append(c.Policy.Schedule, 30*time.Second)
				}
			})
			b.outcomes(nil, errDown)
			assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused())
			assert.Contains(t, b.sent.logs.String(), "rule:the bank")
			sent := b.sent.only(t)
			assert.Equal(t, "0", sent.msg.Metadata.Get(recordkey.Failures))
			assert.Equal(t, 3*time.Second, b.paused(), "not shortened")
			b.outcomes(errDown)
			assertPause(t, 6*time.Second, b.paused())
			b.outcomes(errors.New("another")) // not of the rule: a probe that fails
			longest := 8 * time.Second
			if configured == nil {
				longest = 12 * time.Second
			}
			assertPause(t, longest, b.paused())
			b.outcomes(repeat(nil, 15)...)
			assert.Equal(t, gate.None, b.gate.Limit())
			b.outcomes(repeat(errors.New("another"), 19)...)
			assert.Equal(t, gate.None, b.gate.Limit())
			b.outcomes(errors.New("another"))
			assert.Equal(t, configured != nil, b.gate.Limit() == 0, "only Breaker has a ratio")
		})
	}
}

func TestRuleExtendsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16, rule(retry.Pause(time.Minute)))
		straggler := b.start()
		b.outcomes(errDown)
		time.Sleep(40 * time.Second)
		straggler(errDown)
		assert.Equal(t, time.Minute, b.paused())
		assert.Equal(t, 1, strings.Count(b.sent.logs.String(), "Handler pauses"))
	})
}

// A duplicate shows nothing about the handler, also where the app judges the errors. It ends neither the probing nor a
// ramp, and takes no place.
func TestDuplicatesAreNoSign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := afterAPause(t, 16, func(c *settings) {
			c.Policy.Breaker.Failed = func(error) bool { return true }
		})
		for range 20 {
			require.NoError(t, b.handle(func(msg *message.Message) ([]*message.Message, error) {
				return message.Messages{message.NewMessage("2", nil)}, handledBefore(msg)
			}))
			require.NoError(t, b.handle(failing(msgctx.ErrFirstRuns)))
			assert.Equal(t, 1, b.gate.Limit())
		}
		require.NoError(t, b.handle(failing(nil)))
		assert.Equal(t, 2, b.gate.Limit())
	})
}

func TestOpenCircuitBreakerInsidePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16, func(c *settings) { c.Policy.Breaker = nil })
		circuit := watermillmw.NewCircuitBreaker(gobreaker.Settings{Timeout: 10 * time.Second})
		calls, result := 0, errDown
		h := circuit.Middleware(func(*message.Message) ([]*message.Message, error) { calls++; return nil, result })
		for range 6 {
			require.NoError(t, b.handle(h))
		}
		assert.Equal(t, gate.None, b.gate.Limit(), "it has opened, no message has seen that")
		require.NoError(t, b.handle(h))
		assert.Equal(t, 6, calls)
		assert.Equal(t, "0", b.sent.copies[6].msg.Metadata.Get(recordkey.Failures))
		result = nil
		for _, want := range []time.Duration{1, 2, 4, 8} {
			assert.Equal(t, 0, b.gate.Limit())
			assertPause(t, want*time.Second, b.paused())
			if want < 8 {
				require.NoError(t, b.handle(h))
			}
		}
		require.NoError(t, b.handle(h))
		assert.Equal(t, 7, calls)
		assert.Equal(t, 2, b.gate.Limit())
	})
}

func TestPauseOutlastsTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := withBreaker(t, 16, rule(retry.Pause(time.Minute)))
		second := &valve{}
		b.gate = gate.New(16)
		b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{Gate: b.gate})
		detach := b.gate.Attach(b.valve)
		straggler := b.start()
		b.outcomes(errDown)
		time.Sleep(time.Second)
		detach()
		straggler(errDown)
		time.Sleep(time.Hour)
		assert.Equal(t, 0, b.gate.Limit(), "no timer goes on without a subscription")
		b.gate.Attach(second)
		assert.Equal(t, []int{0}, second.all())
		time.Sleep(time.Millisecond)
		assert.Equal(t, []int{0, 1}, second.all(), "the pause is over")
	})
}

// The race detector sees a breaker that does not lock.
func TestBreakerIsSafeForConcurrentUse(t *testing.T) {
	b := withBreaker(t, 64, func(c *settings) {
		c.Publisher = discard{}
		c.Policy.Breaker = &retry.Breaker{Least: 5, Pause: time.Millisecond, MaxPause: 2 * time.Millisecond}
		c.Policy.Rules = []retry.Rule{{If: retry.Is(errClosedForWork), Then: retry.Pause(time.Millisecond)}}
	})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for n := range 200 {
				err := errDown
				switch (i + n) % 20 {
				case 0:
					err = errClosedForWork
				case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11:
					err = nil
				case 12:
					b.gate.Attach(&valve{})()
				}
				assert.NoError(t, b.handle(failing(err)))
			}
		})
	}
	all.Wait()
	deadline := time.Now().Add(time.Minute)
	for b.gate.Limit() != gate.None && time.Now().Before(deadline) {
		if b.gate.Limit() > 0 {
			assert.NoError(t, b.handle(succeed))
		}
	}
	assert.Equal(t, gate.None, b.gate.Limit())
}

var errClosedForWork = errors.New("maintenance")

func TestBreakerDefaultsFollowEachOther(t *testing.T) {
	for _, row := range []struct {
		breaker retry.Breaker
		want    []time.Duration // milliseconds
	}{
		{retry.Breaker{}, []time.Duration{1000, 2000, 4000, 8000, 16_000, 30_000, 30_000}},
		{retry.Breaker{Pause: 60 * time.Second}, []time.Duration{60_000, 60_000}},
		{retry.Breaker{MaxPause: 500 * time.Millisecond}, []time.Duration{500, 500}},
	} {
		synctest.Test(t, func(t *testing.T) {
			row.breaker.Least = 1
			b := withBreaker(t, 16, func(c *settings) { c.Policy.Breaker = &row.breaker })
			for _, want := range row.want {
				b.outcomes(errDown)
				assertPause(t, want*time.Millisecond, b.paused())
			}
		})
	}
}
