package middleware_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// workQueue is a model of a work queue with its tiers and one subscription, in virtual time. It has the publisher of the copies.
type workQueue struct {
	ctx         context.Context // of its messages
	handler     message.HandlerFunc
	concurrency int

	mu       sync.Mutex
	limit    int // gate.None: concurrency
	waiting  []*message.Message
	inFlight int
	onTiers  int
	dead     []string
}

func (q *workQueue) Limit(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = n
	q.deliver()
}

func (q *workQueue) Taken() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inFlight
}

// deliver is called with q locked.
func (q *workQueue) deliver() {
	bound := q.concurrency
	if q.limit >= 0 {
		bound = min(bound, q.limit)
	}
	for q.inFlight < bound && len(q.waiting) > 0 {
		msg := q.waiting[0].Copy()
		msg.SetContext(each(q.ctx))
		q.waiting = q.waiting[1:]
		q.inFlight++
		go func() {
			_, err := q.handler(msg)
			q.mu.Lock()
			defer q.mu.Unlock()
			if err != nil {
				q.waiting = slices.Insert(q.waiting, 0, msg)
			}
			q.inFlight--
			q.deliver()
		}()
	}
}

func (q *workQueue) send(msg *message.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, msg)
	q.deliver()
}

// Publish implements message.Publisher: the copies wait on their tiers.
func (q *workQueue) Publish(topic string, messages ...*message.Message) error {
	tier, _, _ := strings.Cut(topic, ".")
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, msg := range messages {
		if tier == "dead" {
			q.dead = append(q.dead, msg.UUID)
			continue
		}
		wait, err := time.ParseDuration(tier)
		if err != nil {
			return err
		}
		q.onTiers++
		time.AfterFunc(wait, func() {
			q.send(msg)
			q.mu.Lock()
			defer q.mu.Unlock()
			q.onTiers--
		})
	}
	return nil
}

func (q *workQueue) Close() error { return nil }

func (q *workQueue) done() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 0 && q.inFlight == 0 && q.onTiers == 0
}

// outage is what an outage of a dependency has cost.
type outage struct {
	calls, deadLetters, handled int
	recovery                    time.Duration // from the end of the outage until the backlog is done
}

// simulateOutage lets messages arrive while a dependency is down.
func simulateOutage(t *testing.T, ctx context.Context, breaker *retry.Breaker, down, arrivals time.Duration, messages int) (result outage) {
	const concurrency, work = 16, 50 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		g := gate.New(concurrency)
		q := &workQueue{ctx: msgctx.NewContext(ctx, &msgctx.Subscription{Gate: g}), concurrency: concurrency, limit: gate.None}
		config := configOf(q)
		config.TiersWait = true
		config.Policy.Schedule = backoff.Schedule{time.Second, 5 * time.Second, 25 * time.Second, 125 * time.Second} // README's
		config.Policy.Breaker = breaker
		tiered, err := config.Make(nil)
		require.NoError(t, err)
		begin := time.Now()
		up := begin.Add(down)
		var mu sync.Mutex
		handled := map[string]int{}
		q.handler = tiered.Dispatch(func(msg *message.Message) ([]*message.Message, error) {
			failing := time.Now().Before(up)
			if failing {
				mu.Lock()
				result.calls++
				mu.Unlock()
			}
			time.Sleep(work) // the duration of the work
			if failing {
				return nil, errDown
			}
			mu.Lock()
			defer mu.Unlock()
			handled[msg.UUID]++
			return nil, nil
		})
		defer g.Attach(q)()
		for i := range messages {
			q.send(message.NewMessage(fmt.Sprint(i), nil))
			time.Sleep(arrivals / time.Duration(messages)) // the messages arrive evenly
		}
		time.Sleep(time.Until(up))
		for !q.done() {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		result.recovery = time.Since(up)
		result.deadLetters, result.handled = len(q.dead), len(handled)
		for uuid, times := range handled {
			assert.Equal(t, 1, times, uuid)
		}
	})
	return result
}

func TestOutageOfTenMinutes(t *testing.T) {
	const messages, down, arrivals = 10_000, 10 * time.Minute, 7 * time.Minute // the schedule ends within the outage
	without := simulateOutage(t, routed, nil, down, arrivals, messages)
	t.Logf("without a breaker: %+v", without)
	assert.Greater(t, without.deadLetters, messages*95/100)

	with := simulateOutage(t, routed, &retry.Breaker{MaxPause: 5 * time.Second}, down, arrivals, messages)
	t.Logf("with a breaker:    %+v, %.2f%% of the calls", with, 100*float64(with.calls)/float64(without.calls))
	assert.Zero(t, with.deadLetters)
	assert.Equal(t, messages, with.handled)
	assert.LessOrEqual(t, with.calls, without.calls/100)
	needed := messages / 16 * 50 * time.Millisecond
	t.Logf("recovery: %.3f of what as many messages need without an outage", float64(with.recovery)/float64(needed))
	assert.LessOrEqual(t, with.recovery, needed*12/10)
}

// The probes of a few messages must not use up their retries.
func TestOutageWithFewMessages(t *testing.T) {
	for _, messages := range []int{20, 40, 200} {
		with := simulateOutage(t, routed, &retry.Breaker{}, 24*time.Hour, time.Second, messages)
		t.Logf("%d messages: %+v", messages, with)
		assert.Zero(t, with.deadLetters)
		assert.Equal(t, messages, with.handled)
		assert.Less(t, with.calls, 24*60*60*4/3/30+200, "one in each MaxPause")
		assert.Less(t, with.recovery, time.Minute+125*time.Second)
	}
}
