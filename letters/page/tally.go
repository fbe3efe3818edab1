package page

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

const (
	maxTallied = 1000 // causes with times of their letters, as many as letters.Groups keeps apart
	histogram  = 40   // bars
)

// tally is the causes of the letters that a look has seen.
type tally struct {
	Queue string
	At    time.Time
	Seen  looked

	groups letters.Groups
	all    deaths
	causes map[letters.Cause]*deaths
}

// deaths is when letters were given up, and how often they had been redriven before.
type deaths struct {
	at                 []int64 // seconds since 1970
	redriven, redrives int     // letters that were, and how often all of them were together
}

func (d *deaths) add(l *letters.Letter) {
	if at := l.DeadAt(); !at.IsZero() {
		d.at = append(d.at, at.Unix())
	}
	if l.Redriven.Times > 0 {
		d.redriven++
		d.redrives += l.Redriven.Times
	}
}

func (t *tally) add(l *letters.Letter) {
	t.groups.Add(l)
	t.all.add(l)
	cause := l.Cause()
	of := t.causes[cause]
	if of == nil {
		if len(t.causes) == maxTallied {
			return
		}
		of = &deaths{}
		t.causes[cause] = of
	}
	of.add(l)
}

// tallied looks at the letters of a queue. The page keeps the result for the first view over several stores.
func (p *Page) tallied(ctx context.Context, queue string) (*tally, error) {
	t := &tally{Queue: queue, At: time.Now(), causes: map[letters.Cause]*deaths{}}
	var err error
	if t.Seen, err = p.look(ctx, queue, t.add); err != nil {
		return nil, err
	}
	p.tallyLock.Lock()
	defer p.tallyLock.Unlock()
	if p.tallies == nil || len(p.tallies) == maxQueues {
		p.tallies = map[string]*tally{}
	}
	p.tallies[queue] = t
	return t, nil
}

// period is from the first to the last of some times. It is zero where there is none.
type period struct{ From, To time.Time }

func periodOf(seconds []int64) (of period) {
	if len(seconds) > 0 {
		of.From, of.To = time.Unix(slices.Min(seconds), 0), time.Unix(slices.Max(seconds), 0)
	}
	return of
}

// bar is one of a histogram.
type bar struct {
	X, Y, Height int
	Text         string
}

// bars returns a histogram of the times within a period: the fullest bar has a height of 20.
func (d *deaths) bars(of period) (shown []bar) {
	var counts [histogram]int
	from, width := of.From.Unix(), (of.To.Unix()-of.From.Unix())/histogram+1
	fullest := 0
	for _, at := range d.at {
		i := (at - from) / width
		counts[i]++
		fullest = max(fullest, counts[i])
	}
	for i, n := range counts {
		if n > 0 {
			height := (20*n + fullest - 1) / fullest
			begin := of.From.Add(time.Duration(i) * time.Duration(width) * time.Second)
			shown = append(shown, bar{3 * i, 20 - height, height, fmt.Sprintf("%s died in the %s from %s", number(n),
				span(time.Duration(width)*time.Second), stamp(begin))})
		}
	}
	return shown
}
