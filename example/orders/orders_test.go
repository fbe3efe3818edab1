package orders

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// play calls the handler with every order as often as the middleware would.
func play(t *testing.T, orders int, schedule backoff.Schedule) (billed, dead map[string]int, ids []string) {
	t.Helper()
	p := newProvider(orders, schedule)
	messages, err := newOrders(orders)
	require.NoError(t, err)
	billed, dead = map[string]int{}, map[string]int{}
	for _, msg := range messages {
		ids = append(ids, msg.UUID)
		for failures := 0; ; {
			err := call(p, msg)
			if err == nil {
				billed[msg.UUID]++
				break
			}
			failures++
			if _, left := schedule.Delay(failures); backoff.IsPermanent(err) || !left {
				dead[msg.UUID]++
				break
			}
		}
	}
	return billed, dead, ids
}

func call(p *provider, msg *message.Message) (err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("panic: %v", recovered)
		}
	}()
	return p.bill(msg)
}

func TestScriptSettlesEveryOrder(t *testing.T) {
	for _, schedule := range []backoff.Schedule{{time.Second}, {time.Second, time.Minute, time.Second}} {
		for n := 1; n <= 200; n++ {
			billed, dead, ids := play(t, n, schedule)
			s := summarize(ids, billed, dead, lateness{})
			want := min(max(n-1, 0), 2) // the roles in their order: the first fails once, the next two are dead-lettered
			require.Equal(t, summary{published: n, processed: n - want, dead: want}, s, "%d orders", n)
			require.True(t, s.complete(), "%d orders", n)
		}
	}
}

func TestScriptPlaysEveryRole(t *testing.T) {
	for n := 1; n <= 200; n++ {
		count := map[trouble]int{}
		for _, trouble := range script(n, 4) {
			if trouble.failures != 0 {
				count[trouble]++
			}
		}
		troubled := 0
		for _, c := range count {
			troubled += c
		}
		require.Equal(t, max(min(n, 6), n/4), troubled, "%d orders", n)
		if n < 6 {
			continue
		}
		for _, once := range []trouble{{broken, always}, {declined, always}, {busy, 1}, {bug, 1}} {
			require.Equal(t, 1, count[once], "%v of %d orders", once, n)
		}
		require.Positive(t, count[trouble{silent, 1}], "%d orders", n)
		require.Positive(t, count[trouble{silent, 2}], "%d orders", n)
	}
}

func TestRequestedDelayIsLongerThanAnyTier(t *testing.T) {
	p := newProvider(40, backoff.Schedule{time.Second, time.Minute, time.Second})
	assert.Equal(t, time.Minute+time.Second, p.delay)
	for number, trouble := range p.script {
		if trouble.kind == busy {
			requested, ok := backoff.RetryAfterDelay(p.charge(order{Number: number + 1}))
			assert.True(t, ok)
			assert.Equal(t, p.delay, requested)
		}
	}
}

func TestInvalidOrdersAreDeadLettered(t *testing.T) {
	p := newProvider(1, backoff.Schedule{time.Second})
	assert.True(t, backoff.IsPermanent(p.bill(message.NewMessage("", []byte("{")))))
	assert.True(t, backoff.IsPermanent(p.charge(order{Number: 0})))
	assert.True(t, backoff.IsPermanent(p.charge(order{Number: 2})))
}

func TestSummarize(t *testing.T) {
	published := []string{"a", "b", "c"}
	for _, test := range []struct {
		name         string
		billed, dead map[string]int
		want         summary
		complete     bool
	}{
		{
			"all settled", map[string]int{"a": 1, "b": 1}, map[string]int{"c": 1},
			summary{published: 3, processed: 2, dead: 1}, true,
		},
		{"nothing settled", nil, nil, summary{published: 3, lost: 3}, false},
		{
			"one lost and one billed twice", map[string]int{"a": 2}, map[string]int{"c": 1},
			summary{published: 3, processed: 1, dead: 1, lost: 1, duplicates: 1}, false,
		},
		{
			"billed twice", map[string]int{"a": 3, "b": 1}, map[string]int{"c": 1},
			summary{published: 3, processed: 2, dead: 1, duplicates: 2}, true,
		},
		{
			"billed and dead", map[string]int{"a": 1, "b": 1}, map[string]int{"a": 1, "c": 1},
			summary{published: 3, processed: 2, dead: 2, duplicates: 1}, false,
		},
		{
			"unknown orders", map[string]int{"a": 1, "b": 1, "x": 1}, map[string]int{"c": 1, "": 1},
			summary{published: 3, processed: 2, dead: 1, duplicates: 2}, true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := summarize(published, test.billed, test.dead, lateness{})
			assert.Equal(t, test.want, s)
			assert.Equal(t, test.complete, s.complete())
		})
	}
}

func TestSummaryIsOneLine(t *testing.T) {
	s := summary{published: 40, processed: 38, dead: 2, maxLateness: 12*time.Millisecond + 400*time.Microsecond}
	assert.Equal(t, "published=40 processed=38 dead=2 lost=0 duplicates=0 max_lateness=12ms", s.String())
}

func TestLateness(t *testing.T) {
	for _, test := range []struct {
		name string
		late []time.Duration
		want time.Duration
	}{
		{"no retries", nil, 0},
		{"the largest", []time.Duration{3, 7, 5}, 7},
		{"all early", []time.Duration{-3, -1, -2}, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l lateness
			for _, d := range test.late {
				l.add(d)
			}
			assert.Equal(t, test.want, l.largest)
		})
	}
}

func TestTimeLimit(t *testing.T) {
	assert.Equal(t, margin+marginPerOrder+3*time.Second+4*time.Second, timeLimit(backoff.Schedule{time.Second, 2 * time.Second}, 1))
	assert.Equal(t, time.Duration(math.MaxInt64), timeLimit(backoff.Constant(backoff.MaxDelay, 1000), 1))
}

func TestListIsLimited(t *testing.T) {
	assert.Equal(t, "1 2", list([]int{1, 2}))
	assert.Contains(t, list(make([]int, 25)), "0 and 5 more")
}

func TestRowNeedsHookAndHandler(t *testing.T) {
	msg := message.NewMessage("a", nil)
	var out bytes.Buffer
	j := newJournal([]*message.Message{msg}, newTimeline(&out, false))
	now := time.Now()

	j.back(failure{"a", 1}, now.Add(time.Second))
	assert.Empty(t, out.String(), "the hook has not run yet")
	j.retried(retryEvent("a", 1, now, 900*time.Millisecond))
	assert.Equal(t, "    1        1     900ms        1s  no answer\n", out.String())
	assert.Equal(t, 100*time.Millisecond, j.late.largest)

	j.back(failure{"a", 1}, now.Add(time.Hour))
	assert.Equal(t, 100*time.Millisecond, j.late.largest, "a second delivery does not count as a wait")

	require.Error(t, j.observe(func(*message.Message) error { return errors.New("no") })(msg))
	select {
	case <-j.settled:
		t.Fatal("a failed order must not be settled")
	default:
	}
	for range 2 {
		require.NoError(t, j.observe(func(*message.Message) error { return nil })(msg))
	}
	<-j.settled
	assert.Equal(t, map[string]int{"a": 2}, j.billed)
}

func retryEvent(uuid string, failures int, failedAt time.Time, delay time.Duration) retry.Event {
	return retry.Event{
		Outcome: retry.Retried, MessageUUID: uuid, Delay: delay, Err: errors.New("no answer"),
		Record: retry.Record{Failures: failures, DueAt: failedAt.Add(delay)},
	}
}
