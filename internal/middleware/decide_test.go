package middleware

import (
	"errors"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestDecideReturnsTheOutcomeAndTheRecordOfTheCopy(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	earlier := now.Add(-time.Hour)
	from := origin{topic: "orders", handler: "billing", subscriber: "amqp.Subscriber"}
	schedule := backoff.Schedule{time.Second, time.Minute}
	p := policy{schedule: schedule, tiers: schedule.Tiers(), tiersWait: true, maxDelay: time.Hour}
	errDown := errors.New("the bank is down")
	var tiered TieredRetry
	because := func(err error) failure {
		f := tiered.failureOf(err)
		f.reason, f.errorType = err.Error(), "T"
		return f
	}
	withAction := func(action retry.Action) failure {
		f := because(errDown)
		f.action = action
		return f
	}
	// failed returns the record of a message with that many failures. The first was an hour ago.
	failed := func(times int) retry.Record {
		return retry.Record{Failures: times, FirstFailedAt: earlier, LastFailedAt: earlier, DueAt: earlier, Topic: "orders", Handler: "billing"}
	}
	// copied returns the failure record of the copy.
	copied := func(times int, reason string, due time.Time, dead retry.DeadReason) retry.Record {
		r := retry.Record{Failures: times, FirstFailedAt: earlier, LastFailedAt: now, DueAt: due, Reason: reason, ErrorType: "T", Topic: "orders", Handler: "billing", DeadReason: dead}
		if times == 1 {
			r.FirstFailedAt = now
		}
		if dead != "" {
			r.Subscriber = "amqp.Subscriber"
		}
		return r
	}
	notDue := failed(1)
	notDue.Remaining = 2 * time.Second
	parked := notDue
	dueLater := failed(1)
	dueLater.DueAt = now.Add(time.Hour)
	parked.DueAt, parked.Remaining = now.Add(2*time.Second), time.Second
	givenUp := func(r retry.Record, why retry.DeadReason) retry.Record {
		r.DueAt, r.DeadReason, r.Subscriber = time.Time{}, why, "amqp.Subscriber"
		return r
	}
	refusedCopy := copied(1, errDown.Error(), time.Time{}, retry.DeadReasonRefused)
	lastForm := refusedCopy
	lastForm.LeftOff = "why"
	remaining := func(r retry.Record, rest time.Duration) retry.Record { r.Remaining = rest; return r }
	snoozed := func(r retry.Record) retry.Record { r.Failures, r.Snoozes = r.Failures-1, r.Snoozes+1; return r }
	second, minute := backoff.Tier(time.Second), backoff.Tier(time.Minute)
	downAt := func(due time.Duration) retry.Record { return copied(1, errDown.Error(), now.Add(due), "") }
	dead := func(why retry.DeadReason) decision {
		return decision{outcome: retry.DeadLettered, record: copied(1, errDown.Error(), time.Time{}, why)}
	}

	for name, row := range map[string]struct {
		s    situation
		f    failure
		want decision
	}{
		"blocks, fails, permanent":       {situation{called: true}, because(backoff.Permanent(errDown)), decision{outcome: retry.Blocked, record: dead(retry.DeadReasonPermanent).record}},
		"blocks, is skipped":             {situation{skipped: true, record: failed(3)}, failure{}, decision{outcome: retry.DeadLettered, record: givenUp(failed(3), retry.DeadReasonExhausted)}},
		"blocks, is skipped, shutdown":   {situation{skipped: true, ended: true, record: failed(3)}, failure{}, decision{outcome: retry.GivenBack, record: failed(3)}},
		"MaxAge, is young enough":        {situation{called: true, record: failed(1)}, withAction(retry.Snooze(30 * time.Second)), decision{outcome: retry.Snoozed, record: remaining(snoozed(copied(2, errDown.Error(), now.Add(30*time.Second), "")), 29*time.Second), tier: second, delay: 30 * time.Second}},
		"MaxAge, snoozes":                {situation{called: true, record: failed(1)}, withAction(retry.Snooze(31 * time.Second)), decision{outcome: retry.DeadLettered, record: snoozed(copied(2, errDown.Error(), time.Time{}, retry.DeadReasonExpired))}},
		"MaxAge, requests a delay":       {situation{called: true, record: failed(1)}, because(backoff.RetryAfter(errDown, 31*time.Second)), decision{outcome: retry.DeadLettered, record: copied(2, errDown.Error(), time.Time{}, retry.DeadReasonExpired)}},
		"arrives":                        {situation{}, failure{}, decision{}},
		"arrives, due":                   {situation{record: failed(1)}, failure{}, decision{}},
		"arrives, due on another clock":  {situation{record: dueLater}, failure{}, decision{}},
		"arrives, not due":               {situation{record: notDue}, failure{}, decision{outcome: retry.Parked, record: parked, tier: second, delay: 2 * time.Second}},
		"arrives, not due, shutdown":     {situation{record: notDue, ended: true}, failure{}, decision{outcome: retry.GivenBack, record: notDue}},
		"arrives, shutdown":              {situation{ended: true}, failure{}, decision{outcome: retry.GivenBack}},
		"arrives, cannot be unmarshaled": {situation{}, because(errUnmarshal("no JSON")), decision{outcome: retry.DeadLettered, record: copied(1, "cannot unmarshal the message: no JSON", time.Time{}, retry.DeadReasonUnmarshal)}},
		"arrives, delayed": {situation{delayed: 90 * time.Second}, failure{}, decision{
			outcome: retry.Parked, tier: minute, delay: 90 * time.Second,
			record: retry.Record{FirstArrivedAt: now, DueAt: now.Add(90 * time.Second), Remaining: 30 * time.Second, Topic: "orders", Handler: "billing"},
		}},
		"arrives, delayed for years": {situation{delayed: backoff.MaxDelay}, failure{}, decision{
			outcome: retry.Parked, tier: minute, delay: time.Hour, cut: backoff.MaxDelay,
			record: retry.Record{FirstArrivedAt: now, DueAt: now.Add(time.Hour), Remaining: 59 * time.Minute, Topic: "orders", Handler: "billing"},
		}},
		"arrives, years remain": {situation{record: retry.Record{FirstArrivedAt: earlier, Remaining: backoff.MaxDelay, Topic: "orders"}}, failure{}, decision{
			outcome: retry.Parked, tier: minute, delay: time.Hour, cut: backoff.MaxDelay,
			record: retry.Record{FirstArrivedAt: earlier, DueAt: now.Add(time.Hour), Remaining: 59 * time.Minute, Topic: "orders"},
		}},
		"arrives, delayed, with times of the future": {
			situation{record: retry.Record{FirstArrivedAt: now.Add(time.Hour), FirstFailedAt: now.Add(time.Hour), Remaining: time.Second, Topic: "orders"}}, failure{},
			decision{
				outcome: retry.Parked, tier: second, delay: time.Second,
				record: retry.Record{FirstArrivedAt: now, FirstFailedAt: now.Add(time.Hour), DueAt: now.Add(time.Second), Topic: "orders"},
			},
		},
		"fails, with times of the future": {
			situation{called: true, record: retry.Record{FirstFailedAt: now.Add(time.Hour)}}, because(errDown),
			decision{outcome: retry.Retried, record: downAt(time.Second), tier: second, delay: time.Second},
		},
		"succeeds":                                 {situation{called: true}, failure{}, decision{outcome: retry.Processed}},
		"succeeds after a failure":                 {situation{called: true, record: failed(1)}, failure{}, decision{outcome: retry.Recovered, record: failed(1)}},
		"succeeds after a snooze":                  {situation{called: true, record: retry.Record{Snoozes: 1}}, failure{}, decision{outcome: retry.Recovered, record: retry.Record{Snoozes: 1}}},
		"succeeds after a requested delay":         {situation{called: true, record: failed(0)}, failure{}, decision{outcome: retry.Processed}},
		"succeeds, shutdown":                       {situation{called: true, ended: true}, failure{}, decision{outcome: retry.Processed}},
		"succeeds, acked by the handler":           {situation{called: true, settled: true}, failure{}, decision{outcome: retry.Processed}},
		"is a duplicate":                           {situation{called: true, repeat: true}, failure{}, decision{outcome: retry.Duplicate}},
		"is a duplicate after a failure":           {situation{called: true, repeat: true, record: failed(1)}, failure{}, decision{outcome: retry.Duplicate, record: failed(1)}},
		"fails":                                    {situation{called: true}, because(errDown), decision{outcome: retry.Retried, record: downAt(time.Second), tier: second, delay: time.Second}},
		"fails a second time":                      {situation{called: true, record: failed(1)}, because(errDown), decision{outcome: retry.Retried, record: copied(2, errDown.Error(), now.Add(time.Minute), ""), tier: minute, delay: time.Minute}},
		"fails, no retries left":                   {situation{called: true, record: failed(2)}, because(errDown), decision{outcome: retry.DeadLettered, record: copied(3, errDown.Error(), time.Time{}, retry.DeadReasonExhausted)}},
		"fails, permanent":                         {situation{called: true}, because(backoff.Permanent(errDown)), dead(retry.DeadReasonPermanent)},
		"requests a delay":                         {situation{called: true}, because(backoff.RetryAfter(errDown, 2*time.Second)), decision{outcome: retry.Retried, record: remaining(downAt(2*time.Second), time.Second), tier: second, delay: 2 * time.Second}},
		"requests a part of a tier":                {situation{called: true}, because(backoff.RetryAfter(errDown, 1500*time.Millisecond)), decision{outcome: retry.Retried, record: remaining(downAt(2*time.Second), time.Second), tier: second, delay: 2 * time.Second}},
		"requests less than a millisecond":         {situation{called: true}, because(backoff.RetryAfter(errDown, time.Second+1)), decision{outcome: retry.Retried, record: remaining(downAt(2*time.Second), time.Second), tier: second, delay: 2 * time.Second}},
		"requests more than MaxDelay":              {situation{called: true}, because(backoff.RetryAfter(errDown, 2*backoff.MaxDelay)), decision{outcome: retry.Retried, record: remaining(downAt(time.Hour), 59*time.Minute), tier: minute, delay: time.Hour, cut: 2 * backoff.MaxDelay}},
		"requests a delay, no retries left":        {situation{called: true, record: failed(2)}, because(backoff.RetryAfter(errDown, time.Second)), decision{outcome: retry.DeadLettered, record: copied(3, errDown.Error(), time.Time{}, retry.DeadReasonExhausted)}},
		"fails, shutdown":                          {situation{called: true, ended: true}, because(errDown), decision{outcome: retry.GivenBack}},
		"fails, acked by the handler":              {situation{called: true, settled: true}, because(errDown), decision{outcome: retry.Settled}},
		"fails again, acked by the handler":        {situation{called: true, settled: true, record: failed(1)}, because(errDown), decision{outcome: retry.Settled, record: failed(1)}},
		"fails, acked by the handler, shutdown":    {situation{called: true, settled: true, ended: true}, because(errDown), decision{outcome: retry.Settled}},
		"fails, too large for a tier":              {situation{called: true, refused: unpublished.TooLarge}, because(errDown), dead(retry.DeadReasonTooLarge)},
		"fails, no retries left, too large":        {situation{called: true, record: failed(2), refused: unpublished.TooLarge}, because(errDown), decision{outcome: retry.DeadLettered, record: copied(3, errDown.Error(), time.Time{}, retry.DeadReasonExhausted)}},
		"fails, with a forged last form":           {situation{called: true, record: retry.Record{LeftOff: "forged"}}, because(errDown), decision{outcome: retry.Retried, record: downAt(time.Second), tier: second, delay: time.Second}},
		"fails, refused, with a forged last form":  {situation{called: true, record: retry.Record{LeftOff: "forged"}, refused: unpublished.Refused}, because(errDown), decision{outcome: retry.DeadLettered, record: refusedCopy}},
		"fails, refused":                           {situation{called: true, refused: unpublished.Refused}, because(errDown), decision{outcome: retry.DeadLettered, record: refusedCopy}},
		"fails, the dead letter is refused":        {situation{called: true, refused: unpublished.Refused, last: "why"}, because(errDown), decision{outcome: retry.DeadLettered, record: lastForm}},
		"fails, cannot be published":               {situation{called: true, unpublished: true}, because(errDown), decision{outcome: retry.GivenBack}},
		"not due, too large for a tier":            {situation{record: remaining(notDue, time.Second), refused: unpublished.TooLarge}, failure{}, decision{outcome: retry.DeadLettered, record: givenUp(failed(1), retry.DeadReasonTooLarge)}},
		"not due, all tiers refuse":                {situation{record: notDue, avoid: []backoff.Tier{minute, second}}, failure{}, decision{outcome: retry.DeadLettered, record: givenUp(failed(1), retry.DeadReasonNoTier)}},
		"not due, cannot be published":             {situation{record: notDue, unpublished: true}, failure{}, decision{outcome: retry.GivenBack, record: notDue}},
		"the tier refuses":                         {situation{called: true, avoid: []backoff.Tier{second}}, because(errDown), decision{outcome: retry.Retried, record: downAt(time.Minute), tier: minute, delay: time.Minute}},
		"the longest tier refuses":                 {situation{called: true, record: failed(1), avoid: []backoff.Tier{minute}}, because(errDown), decision{outcome: retry.Retried, record: remaining(copied(2, errDown.Error(), now.Add(time.Minute), ""), 59*time.Second), tier: second, delay: time.Minute}},
		"all tiers refuse":                         {situation{called: true, avoid: []backoff.Tier{minute, second}}, because(errDown), dead(retry.DeadReasonNoTier)},
		"rule: snooze":                             {situation{called: true}, withAction(retry.Snooze(time.Minute)), decision{outcome: retry.Snoozed, record: snoozed(downAt(time.Minute)), tier: minute, delay: time.Minute}},
		"rule: give back":                          {situation{called: true, record: failed(1)}, withAction(retry.GiveBack()), decision{outcome: retry.GivenBack, record: failed(1)}},
		"rule: discard":                            {situation{called: true}, withAction(retry.Discard()), decision{outcome: retry.Discarded, record: copied(1, errDown.Error(), time.Time{}, "")}},
		"rule, acked by the handler":               {situation{called: true, settled: true}, withAction(retry.Snooze(time.Minute)), decision{outcome: retry.Settled}},
		"rule, shutdown":                           {situation{called: true, ended: true}, withAction(retry.Discard()), decision{outcome: retry.GivenBack}},
		"rule: retry by another schedule":          {situation{called: true}, withAction(retry.RetryWith(backoff.Schedule{time.Minute})), decision{outcome: retry.Retried, record: downAt(time.Minute), tier: minute, delay: time.Minute}},
		"rule: retry by another schedule, is over": {situation{called: true, record: failed(1)}, withAction(retry.RetryWith(backoff.Schedule{time.Minute})), decision{outcome: retry.DeadLettered, record: copied(2, errDown.Error(), time.Time{}, retry.DeadReasonExhausted)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.s.origin = from
			of := p
			of.blocks = strings.HasPrefix(name, "blocks, ")
			if strings.HasPrefix(name, "MaxAge, ") {
				of.maxAge = time.Hour + 30*time.Second
			}
			assert.Equal(t, row.want, of.decide(&row.s, &row.f, now))
		})
	}
}

// Outcomes are all outcomes.
var Outcomes = []retry.Outcome{
	retry.Processed, retry.Recovered, retry.Duplicate, retry.Retried, retry.Snoozed, retry.Parked, retry.DeadLettered, retry.Blocked, retry.Discarded,
	retry.Held, retry.GivenBack, retry.Settled,
}

// documented returns the words of the first column of a table of docs/outcomes.md, at most so many. -1: all.
func documented[word ~string](t *testing.T, heading string, most int) (words []word) {
	t.Helper()
	text, err := os.ReadFile("../../docs/outcomes.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_ -]+)` \\|").FindAllStringSubmatch(table, most) {
		words = append(words, word(match[1]))
	}
	return words
}

// The tables of docs/outcomes.md list the outcomes in the order of Outcomes, and first the dead reasons of the
// middleware.
func TestDocumentsHaveTheOutcomesAndTheDeadReasons(t *testing.T) {
	t.Parallel()
	assert.Equal(t, Outcomes, documented[retry.Outcome](t, "Outcomes", -1))
	assert.Equal(t, retry.DeadReasons(), documented[retry.DeadReason](t, "Dead reasons", len(retry.DeadReasons())))
}

var errSpread = errors.New("the bank is down")

// spreadPolicy has tiers of 1s, 5s and 1m, with the lanes of 5s: 5s, 5.125s ... 5.875s.
func spreadPolicy(tiersWait bool) policy {
	return policyOf(retry.Policy{
		Schedule: backoff.Schedule{5 * time.Second, time.Minute}, ExtraTiers: []time.Duration{time.Second}, Jitter: 0.2,
	}, tiersWait)
}

func TestJitterChoosesTheDelayByChance(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		chance float64
		lane   time.Duration
		due    time.Duration // where the backend waits until the due time
	}{
		{0, 5000, 5000},
		{0.124, 5000, 5124},
		{0.125, 5125, 5125},
		{0.5, 5500, 5500},
		{0.5004999, 5500, 5500}, // whole milliseconds
		{0.876, 5875, 5876},
		{math.Nextafter(1, 0), 5875, 5999},
	} {
		s := situation{called: true, chance: row.chance}
		f := failure{err: errSpread}
		lane, due := row.lane*time.Millisecond, row.due*time.Millisecond

		p := spreadPolicy(true)
		d := p.decide(&s, &f, now)
		assert.Equal(t, []any{retry.Retried, backoff.Tier(lane), lane, 875 * time.Millisecond, now.Add(lane), time.Duration(0)},
			[]any{d.outcome, d.tier, d.delay, d.spread, d.record.DueAt, d.record.Remaining}, "%v, tiers wait", row.chance)

		p = spreadPolicy(false)
		d = p.decide(&s, &f, now)
		assert.Equal(t, []any{retry.Retried, backoff.Tier(lane), due, time.Second, now.Add(due), time.Duration(0)},
			[]any{d.outcome, d.tier, d.delay, d.spread, d.record.DueAt, d.record.Remaining}, "%v, due times", row.chance)
	}
}

// Every action, with every chance: only delays of a schedule are spread.
func TestOnlyDelaysOfASchedulesAreSpread(t *testing.T) {
	t.Parallel()
	other := backoff.Schedule{2 * time.Second}
	for name, row := range map[string]struct {
		f       failure
		probe   bool
		delayed time.Duration
		want    time.Duration // the shortest delay
		spread  bool
	}{
		"schedule":                    {f: failure{err: errSpread}, want: 5 * time.Second, spread: true},
		"retry with":                  {f: failure{err: errSpread, action: retry.RetryWith(other)}, want: 2 * time.Second, spread: true},
		"requested":                   {f: failure{err: errSpread, requested: 6 * time.Second}, want: 6 * time.Second},
		"requested, retry with":       {f: failure{err: errSpread, requested: 6 * time.Second, action: retry.RetryWith(other)}, want: 6 * time.Second},
		"requested, the tier's delay": {f: failure{err: errSpread, requested: 5 * time.Second}, want: 5 * time.Second},
		"retry after":                 {f: failure{err: errSpread, action: retry.RetryAfter(5 * time.Second)}, want: 5 * time.Second},
		"snooze":                      {f: failure{err: errSpread, action: retry.Snooze(5 * time.Second)}, want: 5 * time.Second},
		"pause":                       {f: failure{err: errSpread, action: retry.Pause(5 * time.Second)}, want: 5 * time.Second},
		"a probe":                     {f: failure{err: errSpread}, probe: true, want: time.Second},
		"arrives, delayed":            {delayed: 5 * time.Second, want: 5 * time.Second},
	} {
		for _, tiersWait := range []bool{true, false} {
			p := policyOf(retry.Policy{
				Schedule: backoff.Schedule{5 * time.Second}, ExtraTiers: []time.Duration{time.Second}, Jitter: 0.5, Rules: []retry.Rule{{Then: retry.RetryWith(other)}}, MaxDelay: time.Minute,
			}, tiersWait)
			longest := time.Duration(0)
			for i := range 64 {
				s := situation{called: row.f.err != nil, probe: row.probe, delayed: row.delayed, chance: float64(i) / 64}
				d := p.decide(&s, &row.f, time.Now())
				require.GreaterOrEqual(t, d.delay, row.want, name)
				require.Less(t, d.delay, row.want*3/2, name)
				require.Equal(t, row.spread, d.spread > 0, name)
				longest = max(longest, d.delay)
			}
			assert.Equal(t, row.spread, longest > row.want, "%s, tiers wait %v: %v", name, tiersWait, longest)
		}
	}
}

// The next longer lane takes what a lane refuses, then a shorter one, and only then another tier.
func TestLaneThatRefusesIsReplaced(t *testing.T) {
	t.Parallel()
	want := []string{"5625ms", "5750ms", "5875ms", "5500ms", "5375ms", "5250ms", "5125ms", "5s",
		"1m", "61500ms", "63s", "64500ms", "66s", "67500ms", "69s", "70500ms", "1s", "dead-lettered"}
	for _, tiersWait := range []bool{true, false} {
		p := spreadPolicy(tiersWait)
		s, f := situation{called: true, chance: 0.65}, failure{err: errSpread}
		now := time.Now()
		var tried []string
		for {
			d := p.decide(&s, &f, now)
			if d.outcome == retry.DeadLettered {
				assert.Equal(t, retry.DeadReasonNoTier, d.record.DeadReason)
				tried = append(tried, string(d.outcome))
				break
			}
			require.Equal(t, retry.Retried, d.outcome)
			require.GreaterOrEqual(t, d.delay, 5*time.Second, "never early")
			require.Equal(t, now.Add(d.delay), d.record.DueAt)
			if tiersWait {
				require.GreaterOrEqual(t, time.Duration(d.tier)+d.record.Remaining, 5*time.Second, "never early")
			} else {
				require.Equal(t, 5650*time.Millisecond, d.delay, "the due time does not depend on the tier")
			}
			tried, s.avoid = append(tried, d.tier.String()), append(s.avoid, d.tier)
		}
		assert.Equal(t, want, tried)
	}
}

func TestJitterAndMaxAge(t *testing.T) {
	t.Parallel()
	p := spreadPolicy(true)
	p.maxAge = 5500 * time.Millisecond
	for chance, want := range map[float64]retry.DeadReason{0: "", 0.5: "", 0.7: retry.DeadReasonExpired} {
		d := p.decide(&situation{called: true, chance: chance}, &failure{err: errSpread}, time.Now())
		assert.Equal(t, want, d.record.DeadReason, "%v", chance)
		assert.Equal(t, want != "", d.outcome == retry.DeadLettered, "%v", chance)
	}
}

func TestAFailureToPublishHasItsCause(t *testing.T) {
	var err error = notPublished{errors.New("no queue")}
	assert.ErrorIs(t, err, retry.ErrNotPublished)
	assert.EqualError(t, err, "cannot publish what the handler produced: no queue")
}
