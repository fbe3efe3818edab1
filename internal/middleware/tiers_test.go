package middleware_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestTierThatRefusesIsReplacedAtOnce(t *testing.T) {
	for name, row := range map[string]struct {
		failure error
		errs    map[string]error
		tried   []string
		dead    retry.DeadReason
		rest    string
	}{
		"the next longer tier":   {errDown, map[string]error{"1s": errRejected}, []string{"1s", "5s"}, "", ""},
		"a shorter tier":         {backoff.RetryAfter(errDown, time.Minute), map[string]error{"1m": errRejected}, []string{"1m", "5s"}, "", "55s"},
		"the shortest tier":      {backoff.RetryAfter(errDown, time.Minute), map[string]error{"1m": errRejected, "5s": errRejected}, []string{"1m", "5s", "1s"}, "", "59s"},
		"the dead-letter queue":  {errDown, map[string]error{"1s": errRejected, "5s": errRejected, "1m": errRejected}, []string{"1s", "5s", "1m", "dead"}, retry.DeadReasonNoTier, ""},
		"too large":              {errDown, map[string]error{"1s": errTooLarge}, []string{"1s", "dead"}, retry.DeadReasonTooLarge, ""},
		"refused":                {errDown, map[string]error{"1s": errRefused}, []string{"1s", "dead"}, retry.DeadReasonRefused, ""},
		"a later tier too large": {errDown, map[string]error{"1s": errRejected, "5s": errTooLarge}, []string{"1s", "5s", "dead"}, retry.DeadReasonTooLarge, ""},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, snoozeLater, observing)
			sent.errs = row.errs
			handles(t, tiered.Middleware(failing(row.failure)), messageOf(routed))
			assert.Zero(t, time.Since(sent.began), "at once")
			for i, want := range row.tried {
				row.tried[i] = want + " at 0s"
			}
			assert.Equal(t, row.tried, sent.tried)
			metadata := sent.only(t).msg.Metadata
			assert.Equal(t, string(row.dead), metadata[recordkey.DeadReason])
			assert.Equal(t, row.rest, metadata[recordkey.Remaining])
			require.Len(t, sent.events, 1)
			assert.Equal(t, sent.only(t).topic, sent.events[0].Destination)
			record, _ := retry.ReadRecord(metadata)
			if row.dead == "" {
				assert.Equal(t, sent.events[0].Delay, time.Until(record.DueAt), "the due time is that of the tier")
			}
		})
	}
}

// Each of its copies may have arrived. A dead letter has no other destination.
func TestTierThatDoesNotConfirmIsReplacedAfterAMinute(t *testing.T) {
	for name, row := range map[string]struct {
		errs  map[string]error
		takes time.Duration
		hold  time.Duration
		tried []string
		err   bool
	}{
		"the next longer tier": {map[string]error{"1s": errUnconfirmed}, 0, 0, []string{"1s at 0s", "5s at 1m0s"}, false},
		"after a timeout":      {map[string]error{"1s": errUnconfirmed}, 30 * time.Second, 0, []string{"1s at 0s", "5s at 1m0s"}, false},
		"a long timeout":       {map[string]error{"1s": errUnconfirmed}, 2 * time.Minute, 0, []string{"1s at 0s", "5s at 2m0s"}, false},
		"again and again": {
			map[string]error{"1s": errUnconfirmed, "5s": errUnconfirmed, "1m": errUnconfirmed}, 0, 5*time.Minute + time.Second,
			[]string{"1s at 0s", "5s at 1m0s", "1m at 2m0s", "1s at 3m0s", "5s at 4m0s", "1m at 5m0s"}, true,
		},
		"some refuse": {
			map[string]error{"1s": errUnconfirmed, "5s": errRejected, "1m": errRejected}, 0, 2*time.Minute + time.Second,
			[]string{"1s at 0s", "5s at 1m0s", "1m at 1m0s", "1s at 1m0s", "1s at 2m0s"}, true,
		},
		"a short MaxHold": {map[string]error{"1s": errUnconfirmed}, 0, 10 * time.Second, []string{"1s at 0s"}, true},
		"a dead letter": {
			map[string]error{"dead": errUnconfirmed}, 30 * time.Second, 2 * time.Minute, []string{"dead at 0s", "dead at 1m0s", "dead at 2m0s"}, true,
		},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, observing, func(c *settings) { c.Policy.MaxHold = row.hold })
			sent.errs, sent.takes = row.errs, row.takes
			failure := errDown
			if row.errs["dead"] != nil {
				failure = backoff.Permanent(errDown)
			}
			_, err := tiered.Middleware(failing(failure))(messageOf(routed))
			if row.err {
				require.ErrorIs(t, err, errDown)
				require.ErrorContains(t, err, "held for MaxHold")
				assert.Equal(t, row.hold+row.takes, time.Since(sent.began), "MaxHold is over all of it, but the last publish")
				assert.Equal(t, []retry.Outcome{retry.Held, retry.GivenBack}, sent.outcomes(), "held once")
			} else {
				require.NoError(t, err)
				assert.Equal(t, []retry.Outcome{retry.Held, retry.Retried}, sent.outcomes())
			}
			assert.Equal(t, row.tried, sent.tried)
		})
	}
}

// withoutBreaker returns a handler whose subscription follows its gate, and the end of that subscription.
func withoutBreaker(t *testing.T, concurrency int, change ...func(*settings)) (b *breakered, stop func()) {
	t.Helper()
	b = withBreaker(t, concurrency, append(change, func(c *settings) { c.Policy.Breaker = nil })...)
	stopping := make(chan struct{})
	b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{Gate: b.gate, Retry: b.retry, Stopping: stopping})
	return b, func() { close(stopping) }
}

// TestAtMostHalfOfTheConcurrencyHolds for longer than a reconnect takes: the other messages in flight are given back.
func TestAtMostHalfOfTheConcurrencyHolds(t *testing.T) {
	for name, fails := range map[string]error{"not connected": errNoBroker, "timed out": errUnconfirmed} {
		bubble(t, name, func(t *testing.T) {
			outage, givesBack := 3*time.Minute, 6*time.Second // with the pause before a nack
			if fails != errNoBroker {
				givesBack = time.Minute + time.Second
			}
			b, _ := withoutBreaker(t, 16, observing)
			began := time.Now()
			b.sent.fail = until(outage, fails)
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					if err := b.handle(failing(errDown)); err != nil {
						require.ErrorIs(t, err, errDown)
						assert.ErrorContains(t, err, "half of its Concurrency")
						assert.LessOrEqual(t, time.Since(began), givesBack)
					}
				})
			}
			time.Sleep(4 * time.Second)
			assert.Equal(t, 16, b.gate.Held(), "as long as a reconnect may take")
			assert.Equal(t, []gate.Reason{gate.Holding}, b.gate.Paused())
			time.Sleep(time.Minute)
			assert.Equal(t, 8, b.gate.Held())
			assert.Equal(t, []gate.Reason{gate.Holding}, b.gate.Paused())
			all.Wait()
			assert.Zero(t, b.gate.Held())
			assert.Empty(t, b.gate.Paused())
			assert.Len(t, b.sent.copies, 8)
			events := map[retry.Outcome]int{}
			for _, outcome := range b.sent.outcomes() {
				events[outcome]++
			}
			assert.Equal(t, map[retry.Outcome]int{retry.Held: 16, retry.GivenBack: 8, retry.Retried: 8}, events)
		})
	}
}

// errRefusedForGood is the error of a backend whose broker closes the channel because of the message.
var errRefusedForGood = because(unpublished.Refused, "the broker refuses the message")

// TestADeadLetterThatIsRefusedForGoodPausesNothing: its last form is tried at once, and then once a minute. It is held
// without its place.
func TestADeadLetterThatIsRefusedForGoodPausesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := withoutBreaker(t, 1)
		began := time.Now()
		var tries []time.Duration
		b.sent.fail = while(func(int) bool {
			tries = append(tries, time.Since(began))
			return time.Since(began) < 150*time.Second
		}, errRefusedForGood)
		places := gate.NewPlaces(1, 1)
		own, place := msgctx.Each(b.ctx)
		require.True(t, places.Take(place))
		done := make(chan error)
		go func() {
			_, err := b.retry.Dispatch(failing(errDown))(messageOf(own))
			done <- err
		}()
		time.Sleep(90 * time.Second)
		assert.Equal(t, 1, places.Aside())
		assert.Zero(t, places.Taken())
		assert.Equal(t, 1, b.gate.Held())
		assert.Empty(t, b.gate.Paused())
		require.NoError(t, <-done)
		assert.Zero(t, b.gate.Held())
		assert.Equal(t, []time.Duration{0, 0, 0, time.Minute, 2 * time.Minute, 3 * time.Minute}, tries, "retry, dead letter, its last form")
		letter := b.sent.only(t).msg
		assert.Equal(t, errRefusedForGood.Error(), letter.Metadata[recordkey.LeftOff])
		assert.Equal(t, string(retry.DeadReasonRefused), letter.Metadata[recordkey.DeadReason])
	})
}

// TestTooManyMessagesThatAreRefusedForGood: 16 are set aside. The next one is given back at once.
func TestTooManyMessagesThatAreRefusedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 16
		b, stop := withoutBreaker(t, 1)
		b.sent.fail = always(errRefusedForGood)
		handle := func() error {
			own, _ := msgctx.Each(b.ctx)
			_, err := b.retry.Dispatch(failing(errDown))(messageOf(own))
			return err
		}
		var all sync.WaitGroup
		for range most {
			all.Go(func() { require.Error(t, handle()) })
		}
		synctest.Wait()
		began := time.Now()
		require.ErrorContains(t, handle(), "too many messages whose dead letters are refused for good")
		assert.Zero(t, time.Since(began))
		assert.Equal(t, most, b.gate.Held())
		stop()
		all.Wait()
		assert.Zero(t, b.gate.Held())
	})
}
