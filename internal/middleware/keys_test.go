package middleware_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

func tenantOf(msg *message.Message) string { return msg.Metadata.Get("tenant") }

// byTenant makes the breaker one by key, which pauses after five failures.
func byTenant(c *settings) {
	c.Policy.Breaker = &retry.Breaker{Key: tenantOf, Least: 5, MaxPause: 8 * time.Second}
}

// tenants is a test in virtual time of a handler of 16 calls whose breaker has a key.
func tenants(t *testing.T, test func(t *testing.T, b *breakered), change ...func(*settings)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, withBreaker(t, 16, append([]func(*settings){byTenant}, change...)...)) })
}

// send handles a message of a tenant, and reports whether its handler was called.
func (b *breakered) send(tenant string, result error) (called bool) {
	b.t.Helper()
	require.NoError(b.t, b.sendTo(tenant, func(*message.Message) ([]*message.Message, error) {
		called = true
		return nil, result
	}))
	return called
}

func (b *breakered) sendTo(tenant string, h message.HandlerFunc) error {
	if b.valve != nil {
		defer b.valve.take()()
	}
	msg := messageOf(each(b.ctx))
	msg.Metadata.Set("tenant", tenant)
	_, err := b.retry.Dispatch(h)(msg)
	return err
}

// call begins a call of a tenant that takes its time.
func (b *breakered) call(tenant string, takes time.Duration) {
	b.t.Helper()
	go func() {
		_ = b.sendTo(tenant, func(*message.Message) ([]*message.Message, error) { time.Sleep(takes); return nil, nil })
	}()
	synctest.Wait()
}

// sicken makes a tenant pause.
func (b *breakered) sicken(tenant string) {
	b.t.Helper()
	for range 5 {
		require.True(b.t, b.send(tenant, errDown))
	}
}

// outage makes the handler pause, because all of its tenants fail, and fail again after the pause.
func (b *breakered) outage() {
	b.t.Helper()
	b.sicken("7")
	b.sicken("8")
	b.paused()
	require.True(b.t, b.send("7", errDown), "the probe")
}

// calls begins so many calls of a tenant at the same time.
func (b *breakered) calls(tenant string, n int, takes time.Duration) {
	b.t.Helper()
	for range n {
		b.call(tenant, takes)
	}
}

// learns makes 100 ms the usual duration of a call.
func (b *breakered) learns() {
	b.t.Helper()
	for range 20 {
		b.call("1", 100*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
	}
}

// slows makes tenant 7 slow, with nine calls at the same time that take so long.
func (b *breakered) slows(takes time.Duration) {
	b.t.Helper()
	b.calls("7", 9, takes)
	time.Sleep(2 * time.Second)
	assert.Empty(b.t, b.keys())
	b.call("7", 0)
	assert.Empty(b.t, b.keys(), "no message of others has come meanwhile")
	b.call("1", 100*time.Millisecond)
	require.False(b.t, b.send("7", nil), "it has more than half of the places")
	require.Equal(b.t, []string{"7 slow 7"}, b.keys())
}

// keys are the limited ones, as "7 failing 0".
func (b *breakered) keys() (all []string) {
	for _, key := range b.gate.Keys() {
		if key.Paused != "" {
			all = append(all, fmt.Sprint(key.Key, " ", key.Paused, " ", key.Limit))
		}
	}
	return all
}

func TestAKeyPausesAlone(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.send("1", nil)
		b.send("2", nil)
		b.sicken("7")
		assert.Equal(t, []string{"7 failing 0"}, b.keys())
		assert.Equal(t, 1, strings.Count(b.sent.logs.String(), "Key pauses, new messages wait on a tier"))
		copies := len(b.sent.copies)

		assert.False(t, b.send("7", nil), "it waits")
		record := b.sent.record(t)
		assert.Equal(t, retry.Parked, b.sent.outcomes()[len(b.sent.outcomes())-1])
		assert.Zero(t, record.Failures, "it counts no failure")
		assert.Equal(t, "7", record.Key)
		assert.Equal(t, "1s.orders", b.sent.last().topic)
		assert.True(t, b.send("1", nil), "others go on")
		assert.True(t, b.send("", nil), "and those without a key")
		assert.Len(t, b.sent.copies, copies+1)
		assert.Empty(t, b.gate.Paused())

		time.Sleep(time.Second)
		assert.True(t, b.send("7", errDown), "the probe")
		assert.Equal(t, retry.Snoozed, b.sent.outcomes()[len(b.sent.outcomes())-1], "its failure does not count")
		assert.False(t, b.send("7", nil))
		time.Sleep(2 * time.Second)
		b.call("7", time.Second)
		assert.False(t, b.send("7", nil), "one message decides")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"7 failing 2"}, b.keys())
		for range 2 + 4 + 8 {
			assert.True(t, b.send("7", nil))
		}
		assert.Empty(t, b.keys())
	}, observing)
}

// Parked, the message would come again as if its handler had not been called.
func TestWhatIsNotPublishedIsAFailureWhileItsKeyIsPaused(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.send("1", nil)
		b.send("2", nil)
		b.sicken("7")
		msg := messageOf(each(b.ctx))
		msg.Metadata.Set("tenant", "7")
		require.NoError(t, b.retry.NotPublished(msg, errDown))
		assert.Equal(t, retry.Retried, b.sent.outcomes()[len(b.sent.outcomes())-1])
		assert.Equal(t, 1, b.sent.record(t).Failures)
	}, observing)
}

// docs/tenants.md has the rule.
func TestTheHandlerPausesWhereMostKeysFail(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		for _, healthy := range []string{"1", "2"} {
			b.send(healthy, nil)
		}
		b.sicken("7")
		b.sicken("8")
		assert.Empty(t, b.gate.Paused(), "two of four")
		b.sicken("9")
		assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused(), "three of five")
		assert.Empty(t, b.keys(), "the handler pauses in their place")
		assert.Contains(t, b.sent.logs.String(), "keys:5")

		b.paused()
		assert.True(t, b.send("7", errDown), "the probe")
		b.paused()
		for range 100 {
			assert.False(t, b.send("7", nil), "another key is to be the next probe")
		}
		assert.True(t, b.send("8", nil), "it is what all depend on, and it is back")
		assert.False(t, b.send("7", nil))
		assert.Equal(t, 2, b.gate.Limit())
		b.send("1", nil)
		b.send("7", errDown)
		b.send("2", nil)
		for range 4 + 8 {
			b.send("1", nil)
		}
		assert.Empty(t, b.gate.Paused(), "one key that still fails does not keep the handler paused")
		assert.True(t, b.send("7", nil))
	})
}

// The outage of a dependency says nothing about the next one.
func TestAKeyThatHasFailedIsAProbeOfTheNextOutage(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.outage()
		b.paused()
		for range 32 {
			require.True(t, b.send("8", nil))
		}
		require.Empty(t, b.gate.Paused())
		time.Sleep(2 * time.Minute)
		b.outage()
	})
}

// A handler whose messages are of one tenant only is let through in the end.
func TestAKeyThatHasFailedIsPassedOverOnlySoOften(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.outage()
		for range 3 {
			b.paused()
			for range 100 {
				assert.False(t, b.send("7", errDown))
			}
			assert.True(t, b.send("7", errDown))
		}
	})
}

// Where few messages wait, all of them of keys that have failed, one is the probe all the same.
func TestAKeyThatHasFailedIsPassedOverOnlySoLong(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.outage()
		for _, passed := range []time.Duration{time.Second, time.Second, 2 * time.Second, 2 * time.Second} {
			b.paused()
			assert.False(t, b.send("7", nil))
			time.Sleep(passed)
			assert.True(t, b.send("7", errDown), "after a quarter of the pause")
		}
	})
}

// The failure of a key's probe does not count, also where the handler pauses while its call runs.
func TestTheProbeOfAKeyCountsNoFailureWhereTheHandlerPauses(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.sicken("7")
		time.Sleep(time.Second)
		go func() {
			_ = b.sendTo("7", func(*message.Message) ([]*message.Message, error) {
				time.Sleep(time.Millisecond)
				return nil, errDown
			})
		}()
		synctest.Wait()
		b.sicken("8")
		require.Zero(t, b.gate.Limit(), "the handler pauses")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		assert.Equal(t, retry.Snoozed, b.sent.outcomes()[len(b.sent.outcomes())-1])
	}, observing)
}

func TestRetryAfterPausesTheKey(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		for _, tenant := range []string{"5", "6", "7"} {
			b.send(tenant, backoff.RetryAfter(errDown, time.Minute))
		}
		assert.Equal(t, []string{"5 retry after 0", "6 retry after 0", "7 retry after 0"}, b.keys())
		assert.Equal(t, "1m.orders", b.sent.last().topic)
		for _, healthy := range []string{"1", "2", "3"} {
			b.send(healthy, nil)
		}
		b.sicken("8")
		b.sicken("9")
		assert.Empty(t, b.gate.Paused(), "two of eight: what a tenant asks for says nothing about others")
		time.Sleep(30 * time.Second)
		assert.False(t, b.send("7", nil))
		assert.Equal(t, "5s.orders", b.sent.last().topic, "the longest tier that ends before")
		assert.True(t, b.send("1", nil))
		time.Sleep(30 * time.Second)
		assert.True(t, b.send("7", nil))
	})
}

func TestASlowKeyGivesPlacesBack(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.learns()
		b.slows(time.Minute)
		assert.Equal(t, "1s.orders", b.sent.last().topic)
		assert.True(t, b.send("1", nil))
		time.Sleep(time.Minute)
		b.calls("7", 7, 100*time.Millisecond)
		assert.False(t, b.send("7", nil), "seven places")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		assert.Empty(t, b.keys(), "it is as fast as others")
	})
}

// A tenant is slow where it has more than its share for longer than Pause: that it once had for a moment says nothing.
func TestAMomentAboveTheShareIsForgotten(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.calls("7", 9, 100*time.Millisecond)
		time.Sleep(10 * time.Second)
		b.learns()
		b.calls("7", 9, time.Second)
		time.Sleep(500 * time.Millisecond)
		b.call("1", 100*time.Millisecond)
		assert.True(t, b.send("7", nil))
		time.Sleep(time.Second)
	})
}

// A tenant with many messages and fast calls is a matter of queues.
func TestAKeyThatIsFastHasAllPlaces(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		for i := range 600 {
			b.call("7", 100*time.Millisecond) // so twelve of its calls run
			if i%10 == 0 {
				b.call("1", 100*time.Millisecond)
			}
			time.Sleep(8 * time.Millisecond)
		}
		assert.Empty(t, b.sent.copies)
		time.Sleep(time.Second)
	})
}

func TestAKeyThatPanicsIsNone(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		for range 4 {
			b.send("7", errDown)
		}
		assert.Empty(t, b.gate.Paused())
		b.send("7", errDown)
		assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused(), "as without a key")
		assert.Contains(t, b.sent.logs.String(), "Breaker.Key panicked")
	}, func(c *settings) { c.Policy.Breaker.Key = func(*message.Message) string { panic("bug") } })
}

func TestForgedKeysCostNoMore(t *testing.T) {
	b := withBreaker(t, 16, byTenant)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	long := strings.Repeat("x", 10_000)
	const forged = 25_000
	for i := range forged {
		b.send(fmt.Sprint(long[:i%len(long)], i), nil)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	assert.Less(t, int(after.HeapAlloc)-int(before.HeapAlloc), 16<<20, "10,000 keys of 255 bytes, with their outcomes")
	assert.Empty(t, b.gate.Keys())
}

// A key that is limited is forgotten after all that are not: messages with forged keys do not let it through.
func TestForgedKeysDoNotReleaseAKey(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		forge := func(from, to int) {
			for i := from; i < to; i++ {
				require.True(t, b.send(fmt.Sprint("forged ", i), nil))
			}
		}
		b.send("1", nil)
		for i := range 100 {
			b.sicken(fmt.Sprint("sick ", i))
			forge(10*i, 10*i+1)
		}
		forge(1000, 21_000)
		for i := range 100 {
			assert.False(t, b.send(fmt.Sprint("sick ", i), nil))
		}
		assert.False(t, b.gate.Watcher().Seen("1"), "one that is healthy and was not seen for long is forgotten")
		assert.True(t, b.gate.Watcher().Seen("forged 20999"))

		time.Sleep(10 * time.Minute)
		forge(0, 20_000)
		assert.False(t, b.gate.Watcher().Seen("sick 7"), "one of which nothing comes any more is as others")
	})
}

func TestAFloodOfLimitedKeysIsBounded(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		const sent = 12_000
		seen := 0
		for i := range sent {
			b.send(fmt.Sprint("asks ", i), backoff.RetryAfter(errDown, time.Minute))
		}
		for i := range sent {
			if b.gate.Watcher().Seen(fmt.Sprint("asks ", i)) {
				seen++
			}
		}
		assert.Equal(t, 10_000, seen)
		assert.True(t, b.gate.Watcher().Seen(fmt.Sprint("asks ", sent-1)), "a new one is remembered")
	})
}

func TestAnOperatorLimitsAKey(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		decide := func(d gate.Decision) {
			b.gate.Decide(map[string]gate.Decision{"7": d, gate.ShortKey(longKey): d})
		}
		decide(gate.Decision{Until: time.Now().Add(30 * 24 * time.Hour)})
		for _, tenant := range []string{"7", longKey} {
			assert.False(t, b.send(tenant, nil))
			assert.Equal(t, "10m.orders", b.sent.last().topic, "an operator may resume it")
		}
		assert.Contains(t, b.keys(), "7 paused 0")
		decide(gate.Decision{Limit: 1, Until: time.Now().Add(time.Hour)})
		b.call("7", time.Minute)
		assert.False(t, b.send("7", nil))
		assert.True(t, b.send("8", nil))
		time.Sleep(time.Hour)
		assert.Empty(t, b.keys(), "it ends by itself")
		assert.True(t, b.send("7", nil))
	}, longTiers)
}

// longKey is a key that is remembered in a short form.
var longKey = "tenant " + strings.Repeat("x", 300) + "\x00"

func longTiers(c *settings) {
	c.Policy.Schedule = backoff.Schedule{time.Second, 5 * time.Second, time.Minute, 10 * time.Minute, time.Hour}
}

func TestALongRetryAfterIsWaitedOnce(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.send("7", backoff.RetryAfter(errDown, time.Hour))
		for range 40 {
			b.send("7", nil)
		}
		time.Sleep(time.Hour - 2*time.Second)
		require.False(t, b.send("7", nil))
		assert.Equal(t, "5s.orders", b.sent.last().topic, "as the pauses of a key that fails, and no dead letter")
		time.Sleep(2 * time.Second)
		b.call("7", time.Millisecond) // the probe
		require.False(t, b.send("7", nil))
		assert.Equal(t, "1s.orders", b.sent.last().topic)
		time.Sleep(2 * time.Millisecond)
	}, longTiers, func(c *settings) { c.Policy.MaxAge = 30 * time.Minute })
}

func TestASlowKeyThatIsAloneHasAllPlaces(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.learns()
		b.slows(5 * time.Second)
		for range 10 {
			time.Sleep(10 * time.Second)
			b.call("7", 5*time.Second)
		}
		assert.Empty(t, b.keys(), "no message of another key has come for longer than Window")
		time.Sleep(5 * time.Second)
	})
}

func TestAKeptFailureCountsWhereItsKeyIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRedelivering(t, byTenant)
		of := func(uuid string) *message.Message {
			msg := message.NewMessage(uuid, []byte("order"))
			msg.Metadata.Set("tenant", "7")
			return msg
		}
		msg := of("1")
		require.ErrorIs(t, r.deliver(msg, tooLong, errDown), errDown)
		for i := range 5 {
			require.NoError(t, r.deliver(of(fmt.Sprint(2+i)), 0, errDown))
		}
		require.NoError(t, r.deliver(msg, 0, nil))
		assert.EqualValues(t, 6, r.calls.Load(), "it is not called again")
		assert.Equal(t, "1", r.sent.last().msg.Metadata[recordkey.Failures], "its failure counts")
	})
}

// Where no tier takes a message, its handler is called, with the place that the message has.
func TestAMessageThatNoTierTakesKeepsItsPlace(t *testing.T) {
	for _, kind := range []unpublished.Kind{unpublished.Rejected, unpublished.TooLarge} {
		tenants(t, func(t *testing.T, b *breakered) {
			b.sicken("7")
			b.sent.fail = always(because(kind, "no tier"))
			const concurrency = 2
			places := gate.NewPlaces(concurrency, 64)
			var running atomic.Int32
			for place := new(gate.Place); places.Take(place); place = new(gate.Place) {
				msg := messageOf(each(b.ctx))
				msg.Metadata.Set("tenant", "7")
				msgctx.Lookup(msg).Place = place
				go func() {
					defer place.Leave()
					_, _ = b.retry.Dispatch(func(*message.Message) ([]*message.Message, error) {
						running.Add(1)
						time.Sleep(time.Minute)
						return nil, nil
					})(msg)
				}()
				synctest.Wait()
				require.LessOrEqual(t, running.Load(), int32(concurrency))
			}
			assert.EqualValues(t, concurrency, running.Load())
			time.Sleep(2 * time.Minute)
		})
	}
}

// A delay that a middleware requests by metadata is one of the message.
func TestDelayOnErrorHoldsItsMessageOnly(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		delays := &watermillmw.DelayOnError{InitialInterval: time.Minute, MaxInterval: time.Hour, Multiplier: 3}
		_ = b.sendTo("7", delays.Middleware(failing(errDown)))
		assert.Equal(t, "1m.orders", b.sent.last().topic)
		assert.Empty(t, b.keys())
	})
}

func TestTheHandlerPausesWhereKeysFailOneAfterTheOther(t *testing.T) {
	for between, paused := range map[time.Duration][]gate.Reason{1500 * time.Millisecond: {gate.Failing}, time.Hour: nil} {
		tenants(t, func(t *testing.T, b *breakered) {
			b.sicken("1")
			assert.Empty(t, b.gate.Paused(), "one tenant alone")
			time.Sleep(between)
			b.sicken("2")
			assert.Equal(t, paused, b.gate.Paused(), "a tenant of an hour ago is not seen")
		}, func(c *settings) { c.Policy.Breaker.Window = time.Second })
	}
}

func TestTheHandlerGoesOnWhileAnotherKeySucceeds(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.sicken("7")
		time.Sleep(time.Millisecond)
		b.send("1", nil)
		b.sicken("8")
		assert.Empty(t, b.gate.Paused(), "two of three fail, and the third one does not")
		assert.Equal(t, []string{"7 failing 0", "8 failing 0"}, b.keys())
		time.Sleep(time.Millisecond)
		b.sicken("9")
		assert.Empty(t, b.gate.Paused(), "two of four have paused since")
		b.sicken("1")
		assert.Equal(t, []gate.Reason{gate.Failing}, b.gate.Paused(), "three of four")
	})
}

func TestACrowdOfALimitedKeyAsksSeldom(t *testing.T) {
	tenants(t, func(t *testing.T, b *breakered) {
		b.gate.Decide(map[string]gate.Decision{"7": {Limit: 1, Until: time.Now().Add(time.Hour)}})
		b.call("7", 500*time.Millisecond)
		for range 2000 {
			require.False(t, b.send("7", nil))
		}
		soon := 0
		for _, c := range b.sent.copies {
			if c.topic == "1s.orders" {
				soon++
			}
		}
		assert.Equal(t, 32, soon, "the others wait for MaxPause")
		assert.Equal(t, "5s.orders", b.sent.last().topic)
		time.Sleep(time.Second)
	})
}
