package middleware_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	apps "github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// errStatus is an error of a type that rules can match.
type errStatus int

func (e errStatus) Error() string { return fmt.Sprintf("status %d", int(e)) }

func TestEachActionWithEachMatch(t *testing.T) {
	long, short := backoff.Constant(5*time.Second, 9), backoff.Schedule{5 * time.Second}
	const own = retry.DeadReason("invalid")
	type want struct {
		outcome  retry.Outcome
		delay    time.Duration // 0: no copy waits
		failures int           // in the record of the event, after two failures before
		dead     retry.DeadReason
	}
	retried := func(delay time.Duration) want { return want{retry.Retried, delay, 3, ""} }
	snoozed := func(delay time.Duration) want { return want{retry.Snoozed, delay, 2, ""} }
	dead := func(why retry.DeadReason) want { return want{retry.DeadLettered, 0, 3, why} }
	discarded, givenBack := want{retry.Discarded, 0, 3, ""}, want{retry.GivenBack, 0, 2, ""}
	for name, action := range map[string]struct {
		then                        retry.Action
		plain, requested, permanent want // what follows on an error, one with a requested delay of 6s, and a permanent one
	}{
		"no rule":          {retry.Action{}, retried(5 * time.Second), retried(6 * time.Second), dead(retry.DeadReasonPermanent)},
		"RetryWith longer": {retry.RetryWith(long), retried(5 * time.Second), retried(6 * time.Second), retried(5 * time.Second)},
		"RetryWith shorter": {
			retry.RetryWith(short), dead(retry.DeadReasonExhausted), dead(retry.DeadReasonExhausted), dead(retry.DeadReasonExhausted),
		},
		"RetryAfter": {retry.RetryAfter(7 * time.Second), retried(7 * time.Second), retried(7 * time.Second), retried(7 * time.Second)},
		"Snooze":     {retry.Snooze(7 * time.Second), snoozed(7 * time.Second), snoozed(6 * time.Second), snoozed(7 * time.Second)},
		"DeadLetter": {retry.DeadLetter(own), dead(own), dead(own), dead(own)},
		"Discard":    {retry.Discard(), discarded, discarded, discarded},
		"GiveBack":   {retry.GiveBack(), givenBack, givenBack, givenBack},
		"Pause":      {retry.Pause(7 * time.Second), snoozed(7 * time.Second), snoozed(6 * time.Second), snoozed(7 * time.Second)},
	} {
		matches := func(r retry.Record, err error) bool {
			return retry.Is(errStatus(503))(r, err) && retry.As[errStatus]()(r, err) && r.Failures == 2 && r.Reason == "before"
		}
		for kind, row := range map[string]struct {
			err  error
			want want
		}{
			"plain":     {fmt.Errorf("billing: %w", errStatus(503)), action.plain},
			"requested": {backoff.RetryAfter(errStatus(503), 6*time.Second), action.requested},
			"permanent": {backoff.Permanent(errStatus(503)), action.permanent},
		} {
			bubble(t, name+"/"+kind, func(t *testing.T) {
				tiered, sent := setup(t, tiersWait, observing, func(c *settings) {
					if name != "no rule" {
						never := func(retry.Record, error) bool { return false }
						c.Policy.Rules = []retry.Rule{
							{Name: "other", If: retry.Is(errDown), Then: retry.Discard()},
							{Name: "never", If: never, Then: retry.DeadLetter("never")},
							{Name: "this", If: matches, Then: action.then},
							{Name: "last", If: matches, Then: retry.DeadLetter("last")},
						}
					}
				})
				before := retry.Record{Failures: 2, Topic: topic, Reason: "before", FirstFailedAt: time.Now()}
				_, err := tiered.Middleware(failing(row.err))(carrying(before))

				require.Len(t, sent.events, 1)
				e := sent.events[0]
				assert.Equal(t, row.want, want{e.Outcome, e.Delay, e.Record.Failures, e.Record.DeadReason})
				assert.Equal(t, row.err, e.Err)
				if name != "no rule" {
					assert.Equal(t, "this", e.Rule)
				}
				switch row.want.outcome {
				case retry.GivenBack:
					require.ErrorIs(t, err, row.err)
					assert.Equal(t, time.Second, time.Since(sent.began))
					assert.Empty(t, sent.copies)
					assert.Equal(t, "before", e.Record.Reason, "the record that it came with")
				case retry.Discarded:
					require.NoError(t, err)
					assert.Empty(t, sent.copies)
					assert.Contains(t, e.Record.Reason, "status 503")
				default:
					require.NoError(t, err)
					sent.only(t)
					record := sent.record(t)
					assert.Equal(t, []any{row.want.failures, 3 - row.want.failures, row.want.dead},
						[]any{record.Failures, record.Snoozes, record.DeadReason})
					if row.want.delay > 0 {
						assert.Equal(t, row.want.delay, time.Until(record.DueAt))
					}
				}
			})
		}
	}
}

func TestPanicInIfCountsAsNoMatch(t *testing.T) {
	tiered, sent := setup(t, func(c *settings) {
		c.Policy.Rules = []retry.Rule{
			{Name: "panics", If: func(retry.Record, error) bool { panic("in If") }, Then: retry.Discard()},
			{Name: "next", If: retry.Is(errDown), Then: retry.DeadLetter("next")},
		}
	})
	for range 2 {
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
	}
	require.Len(t, sent.copies, 2)
	assert.Equal(t, "next", sent.copies[1].msg.Metadata[recordkey.DeadReason])
	assert.Equal(t, 2, sent.logs.lines("in If"))
	assert.Regexp(t, "in If.*message_uuid:uuid-1", sent.logs.String(), "the message that has no match")
	assert.Contains(t, sent.logs.String(), "rules_test.go:", "the place of the panic")
}

func TestRulesMatchWhatIsNoErrorOfTheHandler(t *testing.T) {
	tiered, sent := setup(t, func(c *settings) {
		c.Policy.Rules = []retry.Rule{
			{If: retry.As[*retry.PanicError](), Then: retry.DeadLetter("panic")},
			{If: retry.Is(apps.ErrNilMessage), Then: retry.DeadLetter("nil")},
			{If: retry.Is(gobreaker.ErrOpenState), Then: retry.DeadLetter("open")},
		}
	})
	for want, h := range map[string]message.HandlerFunc{
		"panic": func(*message.Message) ([]*message.Message, error) { panic("boom") },
		"nil":   func(*message.Message) ([]*message.Message, error) { return []*message.Message{nil}, nil },
		"open":  failing(gobreaker.ErrOpenState),
	} {
		handles(t, tiered.Middleware(h), messageOf(routed))
		assert.Equal(t, want, sent.last().msg.Metadata[recordkey.DeadReason])
	}
}

func TestValidateReportsAllFaultsOfRules(t *testing.T) {
	is := retry.Is(errDown)
	config := configOf(&recorder{})
	config.Policy.Rules = []retry.Rule{
		0:  {},
		1:  {Name: "no action", If: is},
		2:  {Name: "no If", Then: retry.Discard()},
		3:  {Name: "empty schedule", If: is, Then: retry.RetryWith(nil)},
		4:  {Name: "bad schedule", If: is, Then: retry.RetryWith(backoff.Schedule{time.Second, -1})},
		5:  {Name: "now", If: is, Then: retry.RetryAfter(0)},
		6:  {Name: "ever", If: is, Then: retry.Snooze(backoff.MaxDelay + 1)},
		7:  {Name: "past", If: is, Then: retry.Pause(-time.Second)},
		8:  {Name: "no reason", If: is, Then: retry.DeadLetter("")},
		9:  {Name: "long reason", If: is, Then: retry.DeadLetter(retry.DeadReason(strings.Repeat("x", 256)))},
		10: {Name: "good", If: is, Then: retry.DeadLetter(retry.DeadReason(strings.Repeat("x", 255)))},
		11: {Name: "the library's", If: is, Then: retry.DeadLetter(retry.DeadReasonExhausted)},
		12: {Name: "the broker's", If: is, Then: retry.DeadLetter("delivery_limit")},
		13: {Name: "no target", If: retry.Is(nil), Then: retry.Discard()},
	}
	config.Policy.ExtraTiers = []time.Duration{time.Second, 0}
	config.Policy.Breaker = &retry.Breaker{Ratio: math.NaN(), Least: -1}
	config.Policy.MaxAge = -time.Second
	config.Policy.MaxHold = -time.Second
	err := config.Policy.Validate()
	assert.ElementsMatch(t, []string{
		`Rules[0].If is nil: use Is, As or a function of (Record, error)`,
		`Rules[0].Then is not set: use RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack or Pause`,
		`Rules[1].Then is not set: use RetryWith, RetryAfter, Snooze, DeadLetter, Discard, GiveBack or Pause`,
		`Rules[2].If is nil: use Is, As or a function of (Record, error)`,
		`Rules[3].Then: RetryWith: backoff: no retries: want 1 to 1000, for example backoff.Exponential(time.Second, 5, 4)`,
		`Rules[4].Then: RetryWith: backoff: retry 2: delay -1ns is too short: want at least 1ms`,
		`Rules[5].Then: the delay is 0s: it must be more than 0 and at most 87600h0m0s`,
		`Rules[6].Then: the delay is 87600h0m0.000000001s: it must be more than 0 and at most 87600h0m0s`,
		`Rules[7].Then: the delay is -1s: it must be more than 0 and at most 87600h0m0s`,
		`Rules[8].Then: the dead reason has 0 bytes: it must have between 1 and 255`,
		`Rules[9].Then: the dead reason has 256 bytes: it must have between 1 and 255`,
		`Rules[11].Then: the dead reason "exhausted" is one of the library or of the broker: use a word of your own`,
		`Rules[12].Then: the dead reason "delivery_limit" is one of the library or of the broker: use a word of your own`,
		`Rules[13].If is nil: use Is, As or a function of (Record, error)`,
		`ExtraTiers: tier 2: delay 0s is too short: want at least 1ms`,
		`Breaker.Ratio is NaN: it must be more than 0 and at most 1, or 0 for the default`,
		`Breaker.Least is -1: it must be 0 (the default) or more`,
		`MaxHold is -1s: it must be 0 (the default) or more`, `MaxAge is -1s: it must be 0 (the default) or more`,
	}, strings.Split(err.Error(), "\n"), "each fault has its whole path")
	assert.NotContains(t, err.Error(), "good")

	config = configOf(&recorder{})
	config.Policy.MaxAgeFrom = func(*message.Message) time.Time { return time.Time{} }
	require.ErrorContains(t, config.Policy.Validate(), "MaxAgeFrom is set, but MaxAge is 0")
}

// A message that is given up by age keeps the record of its last failure.
func TestMaxAgeFromTheFirstFailure(t *testing.T) {
	aged := func(age time.Duration) func(*settings) {
		return func(c *settings) { c.Policy.MaxAge = age }
	}
	t.Run("no retry is started that would end beyond it", func(t *testing.T) {
		for age, want := range map[time.Duration]string{
			500 * time.Millisecond: "", time.Second: "1s", 5999 * time.Millisecond: "1s", 6 * time.Second: "1s 5s",
			10 * time.Second: "1s 5s", 71 * time.Second: "1s 5s 5s 1m",
		} {
			synctest.Test(t, func(t *testing.T) {
				tiered, sent := setup(t, tiersWait, aged(age))
				began := time.Now()
				h := failing(errDown)
				handles(t, tiered.Middleware(h), messageOf(routed))
				var waited []string
				for sent.record(t).DeadReason == "" {
					waited = append(waited, rounds(t, routed, tiered, sent, h)...)
				}
				assert.Equal(t, want, strings.Join(waited, " "))
				assert.LessOrEqual(t, time.Since(began), age)
				why := retry.DeadReasonExpired
				if len(waited) == 4 {
					why = retry.DeadReasonExhausted
				}
				record := sent.record(t)
				assert.Equal(t, []any{why, len(waited) + 1, errDown.Error()},
					[]any{record.DeadReason, record.Failures, record.Reason}, "%v", age)
			})
		}
	})
	bubble(t, "at arrival the handler is not called", func(t *testing.T) {
		tiered, sent := setup(t, tiersWait, aged(time.Minute), observing)
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
		back := redelivered(routed, sent.only(t))
		time.Sleep(time.Minute) // in the work queue: the handler was paused
		calls := 0
		handles(t, tiered.Middleware(counting(&calls, nil)), redelivered(routed, sent.only(t)))
		assert.Equal(t, 1, calls, "it is as old as it may be")
		time.Sleep(time.Millisecond)
		handles(t, tiered.Middleware(notCalled(t)), back)
		require.Len(t, sent.copies, 2)
		record := sent.record(t)
		assert.Equal(t, []any{retry.DeadReasonExpired, 1, errDown.Error()},
			[]any{record.DeadReason, record.Failures, record.Reason}, "no failure is counted")
		last := sent.events[len(sent.events)-1]
		assert.Equal(t, retry.DeadLettered, last.Outcome)
		assert.Equal(t, time.Minute+time.Millisecond, last.Age)
	})
}

func TestMaxAgeFromAMessage(t *testing.T) {
	ago := func(age time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(-age) } }
	for name, row := range map[string]struct {
		sent  func() time.Time
		dead  retry.DeadReason // of a handler that fails; empty: it is retried
		calls int
	}{
		"now":              {ago(0), "", 1},
		"not known":        {func() time.Time { return time.Time{} }, "", 1},
		"panics":           {func() time.Time { panic("in MaxAgeFrom") }, "", 1},
		"a clock is ahead": {ago(-24 * time.Hour), "", 1},
		"a minute ago":     {ago(time.Minute), retry.DeadReasonExpired, 1},
		"over a minute":    {ago(time.Minute + 1), retry.DeadReasonExpired, 0},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, func(c *settings) {
				c.Policy.MaxAge, c.Policy.MaxAgeFrom = time.Minute, func(*message.Message) time.Time { return row.sent() }
			})
			calls := 0
			handles(t, tiered.Middleware(counting(&calls, errDown)), messageOf(routed))
			assert.Equal(t, row.calls, calls)
			assert.Equal(t, row.dead == "", sent.only(t).topic == "1s.orders")
			record := sent.record(t)
			assert.Equal(t, []any{row.dead, topic, handler}, []any{record.DeadReason, record.Topic, record.Handler})
		})
	}
}

// Two deliveries of a message at the same time are no failure, whatever the rules of the app match. Watermill's
// CircuitBreaker returns its errors without a call of the handler.
func TestErrorsThatCountNoFailure(t *testing.T) {
	all := func(retry.Record, error) bool { return true }
	for name, row := range map[string]struct {
		err   error
		rules []retry.Rule
		want  string
	}{
		"the first delivery runs":         {msgctx.ErrFirstRuns, []retry.Rule{{If: all, Then: retry.DeadLetter("all")}}, "inbox"},
		"an open circuit breaker":         {gobreaker.ErrOpenState, nil, "circuit breaker"},
		"the probes of a circuit breaker": {gobreaker.ErrTooManyRequests, nil, "circuit breaker"},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, observing, func(c *settings) { c.Policy.Rules = row.rules })
			h := failing(fmt.Errorf("billing: %w", row.err))
			handles(t, tiered.Middleware(h), messageOf(routed))
			for snooze := range 10 { // more than the schedule has retries
				assert.Equal(t, []string{"1s"}, rounds(t, routed, tiered, sent, h))
				record := sent.record(t)
				assert.Zero(t, record.Failures)
				assert.Equal(t, snooze+2, record.Snoozes)
			}
			assert.Equal(t, retry.Snoozed, sent.events[0].Outcome)
			assert.Equal(t, row.want, sent.events[0].Rule)
		})
	}
}
