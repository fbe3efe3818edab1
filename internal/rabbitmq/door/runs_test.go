package door

import (
	"slices"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNoKeyOccursTwiceInARun(t *testing.T) {
	for name, c := range map[string]struct {
		keys []string
		ends []int
	}{
		"one":              {[]string{"a"}, []int{1}},
		"distinct":         {[]string{"a", "b", "c"}, []int{3}},
		"the same":         {[]string{"a", "a", "a"}, []int{1, 2, 3}},
		"none":             {[]string{"", "", ""}, []int{3}},
		"again":            {[]string{"a", "b", "a", "b", "c", "b"}, []int{2, 5, 6}},
		"of an earlier":    {[]string{"a", "b", "b", "a", "c"}, []int{2, 5}},
		"between no keys":  {[]string{"a", "", "a", ""}, []int{2, 4}},
		"after an earlier": {[]string{"a", "b", "b", "c", "a", "a"}, []int{2, 5, 6}},
	} {
		assert.Equal(t, c.ends, slices.Collect(runs(c.keys)), name)
	}
}

// TestMessagesWithoutAKeyAreSpread by what stays the same when they are delivered again.
func TestMessagesWithoutAKeyAreSpread(t *testing.T) {
	o := order{partitions: 8, key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }}
	for name, newMessage := range map[string]func(n int) *message.Message{
		"UUIDs":    func(n int) *message.Message { return message.NewMessage(strconv.Itoa(n), []byte("same")) },
		"payloads": func(n int) *message.Message { return message.NewMessage("", []byte(strconv.Itoa(n))) },
	} {
		used := map[int]bool{}
		for n := range 1000 {
			first, key, err := o.partitionOf(newMessage(n))
			require.NoError(t, err)
			assert.Empty(t, key)
			again, _, _ := o.partitionOf(newMessage(n))
			assert.Equal(t, first, again)
			used[first] = true
		}
		assert.Len(t, used, 8, name)
	}
}

// BenchmarkRuns of a call with many messages: the time for each key stays the same.
func BenchmarkRuns(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				for range runs(keys) {
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n)/float64(b.N), "ns/key")
		})
	}
}
