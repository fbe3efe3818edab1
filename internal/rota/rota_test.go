package rota

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type visits struct {
	mu   sync.Mutex
	all  []time.Time
	last map[string]time.Time
	gap  map[string]time.Duration // the longest
}

func newVisits() *visits {
	return &visits{last: map[string]time.Time{}, gap: map[string]time.Duration{}}
}

func (v *visits) visit(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	v.all = append(v.all, now)
	if last, visited := v.last[name]; visited {
		v.gap[name] = max(v.gap[name], now.Sub(last))
	}
	v.last[name] = now
}

func TestTheLoadIsConstant(t *testing.T) {
	for _, row := range []struct {
		names   int
		atLeast time.Duration
	}{{1, 30 * time.Second}, {3, 30 * time.Second}, {30, 30 * time.Second}, {31, 31 * time.Second}, {200, 200 * time.Second}} {
		t.Run(fmt.Sprint(row.names), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVisits()
				r := New(v.visit)
				defer r.Close()
				for i := range row.names {
					r.Add(fmt.Sprint(i))
					r.Add("0") // is there
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
		v := newVisits()
		r := New(v.visit)
		defer r.Close()
		time.Sleep(time.Hour)
		require.Empty(t, v.all, "there is no name")
		r.Add("a")
		r.Add("b")
		r.Add("c")
		time.Sleep(32 * time.Second)
		synctest.Wait()
		v.mu.Lock()
		assert.Len(t, v.last, 3, "the first round takes no longer than Period after an idle time")
		v.mu.Unlock()
		r.Set("c")
		synctest.Wait()
		v.mu.Lock()
		v.last = map[string]time.Time{}
		v.mu.Unlock()
		time.Sleep(2 * Period)
		synctest.Wait()
		v.mu.Lock()
		assert.Len(t, v.last, 1, "the others have been replaced")
		assert.Contains(t, v.last, "c")
		v.mu.Unlock()
		r.Set()
		before := len(v.all)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Len(t, v.all, before)
	})
}

func TestCloseWaitsForTheVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, over := make(chan struct{}), false
		r := New(func(string) {
			close(begun)
			time.Sleep(time.Minute)
			over = true
		})
		r.Add("a")
		<-begun
		r.Close()
		assert.True(t, over)
		r.Close()
	})
}
