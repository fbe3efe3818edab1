package middleware_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
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
		"the longest tier":       {errDown, map[string]error{"1s": errRejected, "5s": errRejected}, []string{"1s", "5s", "1m"}, "", ""},
		"a shorter tier":         {backoff.RetryAfter(errDown, time.Minute), map[string]error{"1m": errRejected}, []string{"1m", "5s"}, "", "55s"},
		"the shortest tier":      {backoff.RetryAfter(errDown, time.Minute), map[string]error{"1m": errRejected, "5s": errRejected}, []string{"1m", "5s", "1s"}, "", "59s"},
		"longer first":           {backoff.RetryAfter(errDown, 5*time.Second), map[string]error{"1m": errRejected, "5s": errRejected}, []string{"5s", "1m", "1s"}, "", "4s"},
		"the dead-letter queue":  {errDown, map[string]error{"1s": errRejected, "5s": errRejected, "1m": errRejected}, []string{"1s", "5s", "1m", "dead"}, retry.DeadReasonNoTier, ""},
		"too large":              {errDown, map[string]error{"1s": errTooLarge}, []string{"1s", "dead"}, retry.DeadReasonTooLarge, ""},
		"refused":                {errDown, map[string]error{"1s": errRefused}, []string{"1s", "dead"}, retry.DeadReasonRefused, ""},
		"of a snooze, refused":   {errLater, map[string]error{"1s": errRefused}, []string{"1s", "dead"}, retry.DeadReasonRefused, ""},
		"of a snooze":            {errLater, map[string]error{"1s": errRejected}, []string{"1s", "5s"}, "", ""},
		"a later tier too large": {errDown, map[string]error{"1s": errRejected, "5s": errTooLarge}, []string{"1s", "5s", "dead"}, retry.DeadReasonTooLarge, ""},
		"a later tier refuses":   {errDown, map[string]error{"1s": errRejected, "5s": errRefused}, []string{"1s", "5s", "dead"}, retry.DeadReasonRefused, ""},
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

func TestParkedMessageIsNotLost(t *testing.T) {
	for why, errs := range map[retry.DeadReason]map[string]error{
		retry.DeadReasonNoTier:   {"1s": errRejected, "5s": errRejected, "1m": errRejected},
		retry.DeadReasonTooLarge: {"1m": errTooLarge},
	} {
		tiered, sent := setup(t, tiersWait)
		sent.errs = errs
		msg := messageOf(routed)
		retry.Record{Failures: 1, Topic: topic, Reason: "before", Remaining: time.Minute}.Write(msg.Metadata)
		handles(t, tiered.Middleware(notCalled(t)), msg)
		sent.only(t)
		record := sent.record(t)
		assert.Equal(t, why, record.DeadReason)
		assert.Equal(t, "before", record.Reason)
		assert.Equal(t, 1, record.Failures)
		assert.Zero(t, record.Remaining)
	}
}

// Each of its copies may have arrived.
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
		"a short MaxHold": {
			map[string]error{"1s": errUnconfirmed}, 0, 10 * time.Second, []string{"1s at 0s"}, true,
		},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, observing, func(c *settings) { c.Policy.MaxHold = row.hold })
			sent.errs, sent.takes = row.errs, row.takes
			_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
			if row.err {
				require.ErrorIs(t, err, errDown)
				require.ErrorContains(t, err, "held for MaxHold")
				assert.Equal(t, row.hold, time.Since(sent.began), "MaxHold is over all of it")
				assert.Equal(t, []retry.Outcome{retry.Held, retry.GivenBack}, sent.outcomes(), "held once")
			} else {
				require.NoError(t, err)
				assert.Equal(t, []retry.Outcome{retry.Held, retry.Retried}, sent.outcomes())
			}
			assert.Equal(t, row.tried, sent.tried)
		})
	}
}

func TestDeadLetterThatIsNotConfirmedIsTriedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		sent.errs, sent.takes = map[string]error{"dead": errUnconfirmed}, 30*time.Second
		_, err := tiered.Middleware(failing(backoff.Permanent(errDown)))(messageOf(routed))
		require.ErrorContains(t, err, "held for MaxHold")
		var want []string
		for minute := range 11 {
			want = append(want, "dead at "+(time.Duration(minute)*time.Minute).String())
		}
		assert.Equal(t, want, sent.tried)
		assert.Equal(t, 10*time.Minute+30*time.Second, time.Since(sent.began), "MaxHold, and one PublishTimeout")
	})
}
