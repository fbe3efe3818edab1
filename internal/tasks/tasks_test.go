package tasks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCloseWaitsForAllTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, ended := New(t.Context()), 0
		for range 3 {
			all.Go(func() {
				<-all.Context.Done()
				time.Sleep(time.Second)
				ended++ // one at a time, because of the bubble's clock
			})
		}
		synctest.Wait()
		require.NoError(t, all.Context.Err())
		all.Close()
		assert.Equal(t, 3, ended)
		all.Go(func() { t.Error("it is closed") })
		all.Close()
	})
}
