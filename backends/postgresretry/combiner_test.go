package postgresretry

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// What is asked for while a statement runs is combined, up to a number of items and of bytes. An item that is larger
// has a statement of its own.
func TestCombinedItems(t *testing.T) {
	for name, row := range map[string]struct {
		sizes []int
		want  []int // the items of each statement
	}{
		"number":    {make([]int, 150), []int{1, 64, 64, 21}},
		"bytes":     {[]int{1, maxBytes / 2, maxBytes / 2, maxBytes / 2}, []int{1, 2, 1}},
		"large one": {[]int{1, 1, 2 * maxBytes, 1, 1}, []int{1, 1, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []int
				gate := make(chan struct{})
				c := combiner[int]{most: 64, parallel: 1, size: func(n int) int { return n },
					run: func(_ context.Context, items []int) error {
						got = append(got, len(items))
						<-gate
						return nil
					}}
				var all sync.WaitGroup
				for _, size := range row.sizes {
					all.Go(func() { assert.NoError(t, c.do(t.Context(), size)) })
					synctest.Wait() // they are queued in order
				}
				close(gate)
				all.Wait()
				assert.Equal(t, row.want, got)
			})
		})
	}
}
