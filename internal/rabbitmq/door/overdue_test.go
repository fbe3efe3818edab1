package door

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
)

// looks answers each look with the next figures of one queue. The last ones stay.
type looks struct {
	fakeAPI
	mu      sync.Mutex
	figures []any // a management.Queue, or an error
	logged  []string
	watermill.NopLogger
}

func (l *looks) Queues(context.Context) (map[string]management.Queue, error) {
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

var watched = &declarer{holding: map[string]bool{"shop.retry.5s": true, "absent": true}}

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
						time.Sleep(overduePeriod)
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
		time.Sleep(overduePeriod) // during the next look
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
