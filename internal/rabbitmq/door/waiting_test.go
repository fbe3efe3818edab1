package door

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

var twoWorks = map[string]topology.Topology{
	"orders": queuesOf(nil, "retry.orphans", "orders.dead", "orders.retry.1s", "orders.retry.1h"),
	"mails":  queuesOf(nil, "retry.orphans", "mails.dead", "shop.retry.5s", "mails.retry.inbox"),
	"bills":  queuesOf(nil, "retry.orphans", "bills.dead", "shop.retry.5s"),
}

func queuesOf(arguments amqp091.Table, names ...string) (t topology.Topology) {
	for _, name := range names {
		t.Queues = append(t.Queues, topology.Queue{Name: name, Arguments: arguments})
	}
	return t
}

// fakeAPI answers with depths or an error.
type fakeAPI struct {
	depths  map[string]management.Queue
	sources map[string]bool // the exchanges that have a queue
	broken  atomic.Bool     // Sources fails
	err     error
	slow    bool // it does not answer
}

func (a *fakeAPI) Sources(context.Context) (map[string]bool, error) {
	if a.broken.Load() {
		return nil, errors.New("the API is down")
	}
	return a.sources, a.err
}

func (a *fakeAPI) Queues(ctx context.Context, _ string) (map[string]management.Queue, error) {
	if a.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return a.depths, a.err
}

// noChannels is a connection that is lost. With an answer it says so when that is closed.
type noChannels struct {
	answer chan struct{}
	opened atomic.Int32
}

func (n *noChannels) Channel(context.Context) (*amqp091.Channel, error) {
	n.opened.Add(1)
	if n.answer != nil {
		<-n.answer
	}
	return nil, errors.New("there is no connection")
}

func lookoutOf(t *testing.T, works map[string]topology.Topology, api api) *lookout {
	return newLookout(t.Context(), &core{prefix: "retry", works: works}, api, &noChannels{})
}

func TestQueuesOfALook(t *testing.T) {
	l := lookoutOf(t, twoWorks, nil)
	const work, dead, tier = backend.WaitingWork, backend.WaitingDead, backend.WaitingTier
	second := backoff.Tier(time.Second)
	want := []watchedQueue{
		{backend.WaitingOrphans, "retry.orphans", 0},
		{dead, "bills.dead", 0}, {dead, "mails.dead", 0}, {dead, "orders.dead", 0},
		{work, "bills", 0}, {work, "mails", 0}, {work, "orders", 0},
		{tier, "shop.retry.5s", 5 * second}, {backend.WaitingInbox, "mails.retry.inbox", 0},
		{tier, "orders.retry.1s", second}, {tier, "orders.retry.1h", 3600 * second},
	}
	assert.Equal(t, want, l.queues())

	// Of the others, the tiers of an earlier schedule belong to the connection, while they have messages.
	listed := map[string]management.Queue{
		"orders.retry.2s": {Messages: 1}, "orders.retry.3s": {}, "shop.retry.1m": {Messages: 2}, "other.retry.1s": {Messages: 1},
		"other": {Messages: 1}, "mails.retry.10s": {Messages: 1}, "orders.retry.1s": {Messages: 5},
	}
	want = append(want, watchedQueue{tier, "mails.retry.10s", 10 * second}, watchedQueue{tier, "orders.retry.2s", 2 * second},
		watchedQueue{tier, "shop.retry.1m", 60 * second})
	assert.Equal(t, want, l.retired(l.queues(), listed))

	assert.Empty(t, lookoutOf(t, nil, nil).queues())
}

// The figures of the management API are enough without a connection.
func TestLookWithoutAConnection(t *testing.T) {
	listed := &fakeAPI{depths: map[string]management.Queue{
		"orders": {Messages: 2, Stated: true}, "orders.dead": {Messages: 3, Stated: true}, "other": {Stated: true}, "mails": {},
	}}
	l := lookoutOf(t, twoWorks, listed)
	all, err := l.waiting(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []backend.Waiting{
		{Kind: backend.WaitingDead, Queue: "orders.dead", Messages: 3}, {Kind: backend.WaitingWork, Queue: "orders", Messages: 2},
	}, all)

	listed.depths, listed.err = nil, errors.New("refused")
	_, err = l.waiting(t.Context())
	require.ErrorContains(t, err, "refused")
	require.ErrorContains(t, err, "there is no connection")

	l.core = nil
	_, err = l.waiting(t.Context())
	require.ErrorContains(t, err, "the look at the queues panicked")
}

// A management API that hangs takes half of the time. Then the broker is asked.
func TestAnAPIThatHangsTakesHalfOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, began := lookoutOf(t, twoWorks, &fakeAPI{slow: true}), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := l.waiting(ctx)
		require.ErrorContains(t, err, "there is no connection")
		assert.Equal(t, 10*time.Second, time.Since(began))
	})
}

// One look at a time waits for a broker that does not answer. Those that come after it end with their deadlines.
func TestLooksDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connection := &noChannels{answer: make(chan struct{})}
		l := lookoutOf(t, twoWorks, nil)
		l.channels = connection
		began := time.Now()
		_, err := l.waiting(context.Background())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the broker has not answered in time")
		assert.Equal(t, lookTimeout, time.Since(began), "a caller without a deadline gets one")
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := l.waiting(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "an earlier look at the queues has not ended")
		}
		assert.EqualValues(t, 1, connection.opened.Load())
		close(connection.answer)
		synctest.Wait()
		_, err = l.waiting(t.Context())
		require.ErrorContains(t, err, "there is no connection")
		assert.EqualValues(t, 2, connection.opened.Load())
	})
}

// taken are the turns that have come until the test ends.
type taken struct {
	*turns
	mu   sync.Mutex
	all  []time.Time
	last map[string]time.Time
	gap  map[string]time.Duration // the longest
}

func takeTurns(t *testing.T) *taken {
	v := &taken{turns: newTurns(), last: map[string]time.Time{}, gap: map[string]time.Duration{}}
	go func() {
		for name, open := v.next(t.Context()); open; name, open = v.next(t.Context()) {
			v.mu.Lock()
			now := time.Now()
			v.all = append(v.all, now)
			if last, found := v.last[name]; found {
				v.gap[name] = max(v.gap[name], now.Sub(last))
			}
			v.last[name] = now
			v.mu.Unlock()
		}
	}()
	return v
}

func TestTheLoadIsConstant(t *testing.T) {
	for _, row := range []struct {
		names   int
		atLeast time.Duration
	}{{1, 30 * time.Second}, {3, 30 * time.Second}, {30, 30 * time.Second}, {31, 31 * time.Second}, {200, 200 * time.Second}} {
		t.Run(fmt.Sprint(row.names), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := takeTurns(t)
				for i := range row.names {
					v.add(fmt.Sprint(i))
					v.add("0") // is there
				}
				begin := time.Now()
				time.Sleep(10 * row.atLeast)
				synctest.Wait()
				v.mu.Lock()
				defer v.mu.Unlock()
				require.Len(t, v.last, row.names)
				for name, gap := range v.gap {
					assert.LessOrEqual(t, gap, row.atLeast, name)
				}
				for _, last := range v.last {
					assert.LessOrEqual(t, time.Since(last), row.atLeast)
				}
				assert.GreaterOrEqual(t, v.all[0].Sub(begin), time.Second)
				for i := 1; i < len(v.all); i++ {
					assert.GreaterOrEqual(t, v.all[i].Sub(v.all[i-1]), time.Second)
				}
				if row.names < 30 {
					all := v.all[len(v.all)-1].Sub(v.all[0])
					assert.Less(t, all, time.Duration(len(v.all)-1)*row.atLeast/time.Duration(row.names), "jitter shortens pauses")
				}
			})
		})
	}
}

func TestNamesThatCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := takeTurns(t)
		time.Sleep(time.Hour)
		require.Empty(t, v.all, "there is no name")
		for _, name := range []string{"a", "b", "c"} {
			v.add(name)
		}
		time.Sleep(32 * time.Second)
		synctest.Wait()
		v.mu.Lock()
		assert.Len(t, v.last, 3, "the first round takes no longer than TurnPeriod after an idle time")
		v.mu.Unlock()
		v.clear()
		synctest.Wait()
		before := len(v.all)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Len(t, v.all, before, "they are removed")
	})
}

// looks answers each look with the next figures of one queue. The last ones stay.
type looks struct {
	fakeAPI
	mu      sync.Mutex
	figures []any // a management.Queue, or an error
	logged  []string
	watermill.NopLogger
}

func (l *looks) Queues(context.Context, string) (map[string]management.Queue, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.figures[0]
	if len(l.figures) > 1 {
		l.figures = l.figures[1:]
	}
	if err, failed := next.(error); failed {
		return nil, err
	}
	return map[string]management.Queue{"shop.retry.5s": next.(management.Queue), "foreign": {Messages: 1000, Expired: 1000}}, nil
}

func (l *looks) Error(text string, err error, _ watermill.LogFields) { l.add("error " + err.Error()) }
func (l *looks) Warn(text string, _ watermill.LogFields)             { l.add("overdue") }
func (l *looks) Info(string, watermill.LogFields)                    { l.add("no longer") }
func (l *looks) With(watermill.LogFields) watermill.LoggerAdapter    { return l }
func (l *looks) add(line string)                                     { l.logged = append(l.logged, line) }

var watched = &core{works: map[string]topology.Topology{
	"orders": queuesOf(amqp091.Table{"x-message-ttl": int64(5000)}, "shop.retry.5s", "absent"),
	"mails":  queuesOf(nil, "foreign"),
}}

func TestOverdue(t *testing.T) {
	counted := func(expired, messages, published int) any {
		return management.Queue{Expired: expired, Messages: messages, Published: published, Counted: true}
	}
	forwarded := func(expired int) any { return management.Queue{Expired: expired, Messages: expired} } // by the broker: not counted
	down := errors.New("down")
	for name, test := range map[string]struct {
		figures []any
		overdue []int // after each look
		logged  []string
	}{
		"nothing waits":                {[]any{counted(0, 0, 5), counted(0, 9, 14)}, []int{0, 0, 0, 0}, nil},
		"a few stay":                   {[]any{counted(5, 5, 5)}, []int{0, 0, 5, 5}, []string{"overdue"}},
		"they stay, and more come":     {[]any{counted(5, 5, 5), counted(6, 9, 9), counted(7, 12, 12)}, []int{0, 0, 7, 7}, []string{"overdue"}},
		"a flow always shows some":     {[]any{counted(9, 99, 100), counted(9, 99, 400), counted(9, 99, 700), counted(9, 99, 1000)}, []int{0, 0, 0, 0}, nil},
		"a flow that falls far behind": {[]any{counted(500, 700, 700), counted(600, 900, 1000), counted(800, 1100, 1300)}, []int{0, 0, 800}, []string{"overdue"}},
		"one interval is not enough":   {[]any{counted(5, 5, 5), counted(5, 5, 5), counted(0, 0, 5)}, []int{0, 0, 0}, nil},
		"they leave":                   {[]any{counted(5, 5, 5), counted(5, 5, 5), counted(5, 5, 5), counted(0, 0, 5)}, []int{0, 0, 5, 0}, []string{"overdue", "no longer"}},
		"the node began again":         {[]any{counted(5, 5, 500), counted(5, 5, 3), counted(5, 5, 3)}, []int{0, 0, 0}, nil},
		"an inbox stands":              {[]any{forwarded(40), forwarded(60)}, []int{0, 0, 60, 60}, []string{"overdue"}},
		"an inbox works":               {[]any{forwarded(20), forwarded(32), forwarded(60), forwarded(9)}, []int{0, 0, 0, 0}, nil},
		"the API is away":              {[]any{counted(5, 5, 5), counted(5, 5, 5), down, down, counted(5, 5, 5)}, []int{0, 0, 0, 0, 5}, []string{"error down", "overdue"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &looks{figures: test.figures}
				o := watchOverdue(l, watched, l)
				defer o.close()
				begin := time.Now()
				synctest.Wait() // the first look is at once
				for look, want := range test.overdue {
					if look > 0 {
						time.Sleep(OverduePeriod)
						synctest.Wait()
					}
					tiers, err := o.health()
					if want == 0 {
						assert.Empty(t, tiers, "look %d", look+1)
					} else {
						require.Len(t, tiers, 1, "look %d", look+1)
						assert.Equal(t, "shop.retry.5s", tiers[0].Queue)
						assert.Equal(t, want, tiers[0].Overdue, "look %d", look+1)
						assert.Equal(t, begin, tiers[0].Since)
					}
					assert.Equal(t, name == "the API is away" && (look == 2 || look == 3), err != "")
				}
				assert.Equal(t, test.logged, l.logged)
			})
		})
	}
}

// A look that does not end has a deadline, and Close does not wait for it.
func TestOverdueWithASlowAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := watchOverdue(&fakeAPI{slow: true}, watched, watermill.NopLogger{})
		time.Sleep(overdueDeadline)
		synctest.Wait()
		_, err := o.health()
		require.Contains(t, err, context.DeadlineExceeded.Error())
		time.Sleep(OverduePeriod) // during the next look
		begin := time.Now()
		o.close()
		assert.Zero(t, time.Since(begin))
	})
	var none *overdue
	none.close()
	tiers, err := none.health()
	assert.Empty(t, tiers)
	assert.Empty(t, err)
}
