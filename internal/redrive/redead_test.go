package redrive

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// A canary is watched as long as its letters need to die again, and a bit longer.
func TestWatch(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	lived := func(d time.Duration) *letters.Letter {
		return &letters.Letter{Record: retry.Record{FirstFailedAt: start, LastFailedAt: start.Add(d)}}
	}
	for _, c := range []struct {
		want   time.Duration
		canary []*letters.Letter
	}{
		{10 * time.Second, nil},
		{10 * time.Second, []*letters.Letter{lived(0), lived(-time.Hour), {}, {Record: retry.Record{LastFailedAt: start}}}},
		{115 * time.Second, []*letters.Letter{lived(time.Second), lived(100 * time.Second), lived(2 * time.Second)}},
		{time.Hour, []*letters.Letter{lived(3 * time.Hour)}},
	} {
		assert.Equal(t, c.want, watchFor(c.canary))
	}
	assert.Equal(t, time.Hour, watchFor([]*letters.Letter{lived(math.MaxInt64)}), "an overflow")
}

func TestRedead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share        float64
		sent, redead int
		want         bool
	}{
		{0, 1000, 1000, false}, {0.05, 19, 19, false}, {0.05, 20, 1, false}, {0.05, 20, 2, true}, {0.05, 1000, 50, false}, {0.05, 1000, 51, true},
		{1, 100, 100, false}, {0.001, 20, 1, true},
	} {
		assert.Equal(t, c.want, New(letters.Redrive{MaxRedead: c.share}, 1).tooMany(c.sent, c.redead), "%+v", c)
	}
}
