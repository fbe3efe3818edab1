package tasks

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCloseWaitsForAllTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, ended := New(t.Context()), atomic.Int32{}
		for range 3 {
			all.Go(func() {
				<-all.Context.Done()
				time.Sleep(time.Second)
				ended.Add(1)
			})
		}
		synctest.Wait()
		require.NoError(t, all.Context.Err())
		all.Close()
		assert.EqualValues(t, 3, ended.Load())
		all.Go(func() { t.Error("it is closed") })
		all.Close()
	})
}
