package redrive

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// one is a source of one letter, whose send takes a second. The next look fails.
type one struct {
	Source
	Item
	seen bool
}

var errAway = errors.New("no connection")

func (o *one) Next(context.Context) (Item, error) {
	if o.seen {
		return nil, errAway
	}
	o.seen = true
	return o, nil
}

func (*one) Letter() *letters.Letter    { return &letters.Letter{} }
func (*one) Target() string             { return "orders" }
func (*one) Find(context.Context) error { return nil }

func (*one) Send(context.Context) (int, error) {
	time.Sleep(time.Second)
	return 0, nil
}

// A pass that fails ends when its letters in flight are counted: the run goes on with another connection.
func TestAPassEndsWithItsLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(letters.Redrive{}, 8)
		require.ErrorIs(t, r.Pass(t.Context(), &one{}), errAway)
		assert.Equal(t, 1, r.Removed())
	})
}

// When a connection is lost, as many removals as it had are doubtful, and no more. Letters that are missing then were
// removed; others were taken away by another reader.
func TestLostRemovals(t *testing.T) {
	t.Parallel()
	removed := func(n int) *Run {
		r := New(letters.Redrive{}, 8)
		r.Begin(100)
		r.Change(func(s *letters.Summary) { s.Done, r.unsure = n, n })
		return r
	}
	r := removed(5)
	r.Lost(2)
	assert.Equal(t, 3, r.summary.Done)
	assert.Equal(t, 2, r.summary.Doubtful)
	assert.Equal(t, 8, r.Missing(10), "two of them were removed")
	assert.Equal(t, 5, r.summary.Done)

	r = removed(5)
	r.Lost(100)
	assert.Equal(t, 5, r.summary.Doubtful)
	assert.Zero(t, r.Missing(1))
	assert.Equal(t, 1, r.summary.Done)
}

// A large letter takes several places in flight.
func TestPlacesOfALetter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, began := NewFlights(4), time.Now()
		send := func(size int) {
			require.NoError(t, f.Run(t.Context(), size, func() { time.Sleep(time.Second) }))
		}
		send(2 * placeSize)
		send(0)
		assert.Zero(t, time.Since(began))
		send(0) // there is no place before the first ones have ended
		assert.Equal(t, time.Second, time.Since(began))
		send(1000 * placeSize) // alone
		f.Wait()
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}

// TestAnImportThatEndsEarly names the lines that are imported: the next one would make a second letter of each. Lines
// behind the one that fails can be in flight.
func TestAnImportThatEndsEarly(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		file string
		dry  bool
		want string
	}{
		"in their order": {"0s\n\n0s\nbroken\n", false, "line 4: broken; imported already: line 1 to 3; remove these"},
		"one behind":     {"1s\n3s\n9s\n1s\n", false, "line 3: too late; imported already: line 1 to 2, 4; remove these"},
		"none":           {"\nbroken\n", false, "line 2: broken"},
		"a dry run":      {"1s\nbroken\n", true, "line 2: broken"},
		"Ctrl-C":         {"1s\n20s\n1s\n", false, "context deadline exceeded; imported already: line 1, 3; remove these"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
				defer end()
				r := New(letters.Redrive{DryRun: row.dry}, 8)
				err := r.Lines(ctx, strings.NewReader(row.file), func(text []byte) (Line, error) {
					takes, err := time.ParseDuration(strings.TrimSpace(string(text)))
					if err != nil {
						return Line{}, errors.New("broken")
					}
					return Line{Put: func(ctx context.Context) error {
						if takes == 0 { // also where a line behind it has failed meanwhile
							return nil
						}
						if err := pauses.Sleep(ctx, takes); err != nil || takes == 9*time.Second {
							return cmp.Or(err, errors.New("too late"))
						}
						return nil
					}}, nil
				})
				require.ErrorContains(t, err, row.want)
				assert.Equal(t, strings.Contains(row.want, "imported"), errors.As(err, new(*Unfinished)))
			})
		})
	}
}

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

// consumed is a source of a letter for each target. Its backend shows another number of consumers of each at each look,
// and goes on with the last one.
type consumed struct {
	one
	numbers map[string][]int // by target
	next    []string         // the targets of the letters that are left
	dies    time.Time        // when a letter dies again; zero: never
}

func (c *consumed) Next(context.Context) (Item, error) {
	if len(c.next) == 0 {
		return nil, nil
	}
	item := &sent{target: c.next[0]}
	c.next = c.next[1:]
	return item, nil
}

func (*consumed) Settle() error { return nil }

func (c *consumed) Redead(context.Context, int) (int, error) {
	if c.dies.IsZero() || time.Now().Before(c.dies) {
		return 0, nil
	}
	return 1, nil
}

func (c *consumed) Unconsumed(_ context.Context, targets []string) (fault string, known bool) {
	for _, target := range targets {
		numbers := c.numbers[target]
		if numbers[0] == 0 {
			fault = cmp.Or(fault, target+" has no consumer")
		}
		c.numbers[target] = numbers[min(1, len(numbers)-1):]
	}
	return fault, true
}

type sent struct {
	one
	target string
}

func (s *sent) Target() string                  { return s.target }
func (*sent) Send(context.Context) (int, error) { return 0, nil }
func (*sent) Keep(context.Context) error        { return nil }

// TestACanaryLooksAgainForAConsumer: a backend shows none for a moment. A canary that has none for longer is not sent,
// or is not known to be handled. All its targets count, and a letter that died is the reason before that.
func TestACanaryLooksAgainForAConsumer(t *testing.T) {
	t.Parallel()
	const (
		refused = "orders has no consumer: its handler is paused, or its app is down. A canary that no"
		unknown = "orders has no consumer: its handler is paused, or its app is down. So it is not known whether the canary"
	)
	paused := slices.Concat([]int{1, 1}, make([]int, 50), []int{1})
	dead := letters.ErrRedead.Error()
	for name, row := range map[string]struct {
		orders, mails []int
		dies          time.Duration
		done          int
		want          string
		took          time.Duration
	}{
		"at once":            {[]int{1}, []int{1}, 0, 2, "", 10 * time.Second},
		"after a moment":     {[]int{0, 0, 0, 1}, []int{1}, 0, 2, "", 13 * time.Second},
		"never":              {[]int{0}, []int{1}, 0, 0, refused, 9 * time.Second},
		"never the second":   {[]int{1}, []int{0}, 0, 1, strings.Replace(refused, "orders", "mails", 1), 9 * time.Second},
		"interrupted":        {[]int{0}, []int{1}, 0, 0, context.DeadlineExceeded.Error(), time.Second / 2},
		"away for a moment":  {[]int{1, 1, 0, 0, 1}, []int{1}, 0, 2, "", 12 * time.Second},
		"paused":             {paused, []int{1}, 0, 2, "", time.Minute},
		"twice":              {slices.Concat(paused, paused), []int{1}, 0, 2, "", 110 * time.Second},
		"gone meanwhile":     {[]int{1, 1, 0}, []int{1}, 0, 2, unknown, 62 * time.Second},
		"gone at the end":    {slices.Concat(slices.Repeat([]int{1}, 10), []int{0}), []int{1}, 0, 2, unknown, 70 * time.Second},
		"the second is gone": {[]int{1}, []int{1, 1, 0}, 0, 2, strings.Replace(unknown, "orders", "mails", 1), 62 * time.Second},
		"dies meanwhile":     {[]int{1, 1, 0}, []int{1}, 5 * time.Second, 2, dead, 5 * time.Second},
		"dies at the end":    {[]int{1, 1, 0}, []int{1}, 62 * time.Second, 2, dead, 62 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, began := t.Context(), time.Now()
				if name == "interrupted" {
					interrupted, end := context.WithTimeout(ctx, time.Second/2)
					defer end()
					ctx = interrupted
				}
				source := &consumed{
					numbers: map[string][]int{"orders": row.orders, "mails": row.mails}, next: []string{"orders", "mails"},
				}
				if row.dies > 0 {
					source.dies = began.Add(row.dies)
				}
				r := New(letters.Redrive{Canary: 2, CanaryWait: 10 * time.Second, Progress: func(p letters.Progress) {
					if p.Phase == letters.Watching {
						assert.LessOrEqual(t, time.Now(), p.Until, "it is not over")
					}
				}}, 8)
				r.Begin(2)
				summary, err := r.Finish(r.Pass(ctx, source), false)
				assert.Equal(t, row.done, summary.Done)
				assert.Equal(t, row.took, time.Since(began))
				if row.want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, row.want)
				}
			})
		})
	}
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
