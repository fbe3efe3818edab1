package door

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
