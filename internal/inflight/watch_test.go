package inflight_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

const lookPause = 100 * time.Millisecond

// shelf is a server of several topics in virtual time.
type shelf struct {
	watch *inflight.Watch

	mu    sync.Mutex
	due   map[string][]time.Time // by topic, in order
	looks int
	most  int // topics in a look
	err   error
}

// watched runs a test in virtual time, with a watch of a shelf.
func watched(t *testing.T, test func(t *testing.T, s *shelf)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{due: map[string][]time.Time{}}
		s.watch = inflight.NewWatch(context.Background(), s, lookPause, watermill.NopLogger{})
		defer s.watch.Close()
		test(t, s)
	})
}

func (s *shelf) Look(_ context.Context, topics []string) (map[string]time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	s.most = max(s.most, len(topics))
	if s.err != nil {
		return nil, s.err
	}
	found := map[string]time.Duration{}
	for _, topic := range topics {
		if due := s.due[topic]; len(due) > 0 {
			found[topic] = time.Until(due[0])
		}
	}
	return found, nil
}

func (s *shelf) put(topic string, n int, in time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.due[topic] = append(s.due[topic], time.Now().Add(in))
	}
}

func (s *shelf) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// reader returns a function that takes messages of a topic, and the number of its takes.
func (s *shelf) reader(ctx context.Context, topic string) (take func(n int) (int, error), takes *atomic.Int64) {
	alarm := s.watch.Alarm(topic)
	takes = &atomic.Int64{}
	return func(n int) (int, error) {
		taken, err := alarm.Take(ctx, n, func(bool) (taken []*inflight.Taken, next time.Duration, err error) {
			takes.Add(1)
			s.mu.Lock()
			defer s.mu.Unlock()
			for len(taken) < n && len(s.due[topic]) > 0 && !time.Now().Before(s.due[topic][0]) {
				taken = append(taken, &inflight.Taken{ID: topic})
				s.due[topic] = s.due[topic][1:]
			}
			if len(s.due[topic]) > 0 {
				return taken, time.Until(s.due[topic][0]), nil
			}
			return taken, -1, nil
		})
		return len(taken), err
	}, takes
}

// A thousand idle readers cost as many looks as one, and none of them takes. Without one that waits there is no look.
func TestLooksDoNotGrowWithReaders(t *testing.T) {
	for _, readers := range []int{1, 1000} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			watched(t, func(t *testing.T, s *shelf) {
				ctx, end := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var takes []*atomic.Int64
				for i := range readers {
					take, n := s.reader(ctx, fmt.Sprint(i))
					takes = append(takes, n)
					all.Go(func() { _, _ = take(16) })
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				assert.InDelta(t, 100, s.looked(), 1)
				assert.Equal(t, readers, s.most)
				for _, n := range takes {
					assert.EqualValues(t, 1, n.Load())
				}
				end()
				all.Wait()
				before := s.looked()
				time.Sleep(10 * time.Second)
				assert.LessOrEqual(t, s.looked(), before+1)
			})
		})
	}
}

// A message is taken when it is due: by what the take before has told, by a look, and by what this process expects. A
// time that is later changes nothing.
func TestMessagesAreTakenWhenTheyAreDue(t *testing.T) {
	const late = 10 * time.Millisecond
	for name, row := range map[string]struct {
		before bool // it is there at the first take
		in     time.Duration
		expect []time.Duration
		late   time.Duration
	}{
		"told":            {true, 777 * time.Millisecond, nil, late},
		"looked":          {false, 777 * time.Millisecond, nil, late},
		"looked too late": {false, 0, nil, lookPause},
		"expected":        {false, 7 * time.Millisecond, []time.Duration{time.Hour, 7 * time.Millisecond, time.Minute}, late},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, func(t *testing.T, s *shelf) {
				take, takes := s.reader(t.Context(), "a")
				put := func() {
					s.put("a", 1, row.in)
					for _, in := range row.expect {
						s.watch.Expect("a", in)
					}
				}
				began := time.Now()
				if row.before {
					put()
				} else {
					time.AfterFunc(lookPause/2, put)
					began = began.Add(lookPause / 2)
				}
				n, err := take(16)
				require.NoError(t, err)
				assert.Equal(t, 1, n)
				assert.GreaterOrEqual(t, time.Since(began), row.in)
				assert.LessOrEqual(t, time.Since(began), row.in+row.late)
				assert.LessOrEqual(t, takes.Load(), int64(3))
			})
		})
	}
}

// What a look has found is told to the next take, also where one before has failed.
func TestTakeIsToldOfTheLook(t *testing.T) {
	watched(t, func(t *testing.T, s *shelf) {
		alarm := s.watch.Alarm("a")
		var told []bool
		take := func(err error) {
			_, got := alarm.Take(t.Context(), 1, func(looked bool) ([]*inflight.Taken, time.Duration, error) {
				if told = append(told, looked); err != nil {
					return nil, 0, err
				}
				return []*inflight.Taken{{}}, -1, nil
			})
			require.ErrorIs(t, got, err)
		}
		take(nil)
		take(nil)
		s.watch.Found("a")
		take(errDown)
		take(nil)
		take(nil)
		assert.Equal(t, []bool{false, false, true, true, false}, told)
	})
}

// A backlog does not wait, and messages that become due one by one are taken together.
func TestBacklogIsTakenAtOnce(t *testing.T) {
	watched(t, func(t *testing.T, s *shelf) {
		take, takes := s.reader(t.Context(), "a")
		s.put("a", 1600, 0)
		began := time.Now()
		for range 100 {
			n, err := take(16)
			require.NoError(t, err)
			require.Equal(t, 16, n)
		}
		assert.Zero(t, time.Since(began))
		takes.Store(0)
		looks := s.looked()
		for i := range 1000 {
			s.put("a", 1, time.Duration(i)*time.Millisecond)
		}
		for got := 0; got < 1000; {
			n, err := take(16)
			require.NoError(t, err)
			got += n
		}
		// One take for each 5 ms, and a look can wake the reader between two of them.
		assert.LessOrEqual(t, takes.Load(), int64(201+s.looked()-looks))
	})
}

// Two readers of one topic share what is there, and both are woken.
func TestReadersShareATopic(t *testing.T) {
	watched(t, func(t *testing.T, s *shelf) {
		var all sync.WaitGroup
		for range 2 {
			take, _ := s.reader(t.Context(), "a")
			all.Go(func() {
				n, err := take(3)
				assert.NoError(t, err)
				assert.Equal(t, 3, n)
			})
		}
		time.Sleep(time.Second)
		s.put("a", 6, time.Second)
		all.Wait()
	})
}

// Where only the looks fail, as without the permission to see other topics, a message that another process has put is
// taken nevertheless.
func TestMessagesAreTakenWhileLooksFail(t *testing.T) {
	watched(t, func(t *testing.T, s *shelf) {
		s.err = errDown
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		take, takes := s.reader(ctx, "a")
		time.AfterFunc(20*time.Second, func() { assert.Less(t, s.looked(), 20, "looks that fail have a back-off") })
		time.AfterFunc(time.Minute, func() { s.put("a", 1, 0) })
		began := time.Now()
		n, err := take(16)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.LessOrEqual(t, time.Since(began), time.Minute+5*time.Second)
		assert.LessOrEqual(t, takes.Load(), int64(40))
	})
}
