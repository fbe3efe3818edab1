package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// pageSize is how many letters a list has.
	pageSize = 50
	// maxGroups is how many causes are shown.
	maxGroups = 100
)

// looked is what a look at a queue has seen.
type looked struct {
	Letters int    // looked at
	More    bool   // there are more
	Late    bool   // the time was over
	Err     string // the look ended early
	Taken   bool   // a redrive or discard of the page runs, and has some of the letters
}

// look visits the letters of a queue, the oldest first, and not more than MaxLetters. The filter of Browse is not
// used: the letters that it leaves out would not be counted. A look does not end before, because up to RabbitMQ 4.2
// the letters of a look that ends early come back behind others.
func (p *Page) look(ctx context.Context, queue string, visit func(*letters.Letter)) (looked, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	seen := looked{Taken: p.jobs.runs(queue)}
	done, err := p.turns.take(ctx, queue)
	if err != nil {
		return seen, failure{http.StatusServiceUnavailable, busy, nil}
	}
	defer done()
	for letter, err := range p.config.Store.Browse(ctx, queue, letters.Filter{}) {
		if err != nil {
			if seen.Letters == 0 && !errors.Is(err, context.DeadlineExceeded) {
				return seen, err
			}
			seen.More, seen.Late = true, errors.Is(err, context.DeadlineExceeded)
			if !seen.Late {
				seen.Err = explain(err)
			}
			return seen, nil
		}
		if seen.Letters == p.config.MaxLetters {
			seen.More = true
			return seen, nil
		}
		seen.Letters++
		visit(letter)
	}
	return seen, nil
}

// busy is the text for a queue whose letters are taken.
const busy = "The queue is busy: another view of it, or a redrive or discard, has its letters. Load the page again " +
	"in a moment."

type causesView struct {
	selection
	Seen    looked
	Died    deaths
	Groups  []causeRow
	Hidden  int // causes that are not shown
	Largest int // letters of the largest group
}

// causeRow is a cause with its letters, also of several stores.
type causeRow struct {
	letters.Group
	deaths
	In []causeIn
}

// causes groups the letters of a queue.
func (p *Page) causes(w http.ResponseWriter, r *http.Request) error {
	if p.stores != nil {
		return p.lookAtAll(w, r)
	}
	s, err := p.selected(r)
	if err != nil {
		return err
	}
	found, err := p.tallied(r.Context(), s.Queue)
	if err != nil {
		return err
	}
	shown := causesView{selection: s, Seen: found.Seen, Died: found.Died}
	groups, hidden := first(maxGroups, found.groups.Sorted())
	for _, group := range groups {
		shown.Groups = append(shown.Groups, causeRow{Group: group, deaths: found.deathsOf(group)})
		shown.Largest = max(shown.Largest, group.Count)
	}
	shown.Hidden = hidden
	p.render(w, http.StatusOK, "causes.html", s.Queue, shown)
	return nil
}

type listView struct {
	selection
	Seen           looked
	Rows           []listRow
	Page, From, To int
	Count          int // letters of all pages
}

// listRow is a letter without its body, of which a page has many.
type listRow struct {
	letters.Letter
	Bytes int
}

// list shows the letters of a cause, or of a queue, page by page.
func (p *Page) list(w http.ResponseWriter, r *http.Request) error {
	s, err := p.selected(r)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("page"), "1"))
	if err != nil || number < 1 || number > p.config.MaxLetters/pageSize+1 {
		return failure{http.StatusBadRequest, "There is no such page of the list.", err}
	}
	shown := listView{selection: s, Page: number}
	before, filter, now := (shown.Page-1)*pageSize, s.filter(), time.Now()
	shown.Seen, err = p.look(r.Context(), s.Queue, func(l *letters.Letter) {
		if !filter.Match(l, now) {
			return
		}
		if shown.Count >= before && len(shown.Rows) < pageSize {
			row := listRow{*l, len(l.Payload)}
			row.Payload = nil
			shown.Rows = append(shown.Rows, row)
		}
		shown.Count++
	})
	if err != nil {
		return err
	}
	shown.From, shown.To = before+1, before+len(shown.Rows)
	p.render(w, http.StatusOK, "letters.html", s.Queue, shown)
	return nil
}

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
	Died   deaths
	causes map[letters.Cause]*deaths
}

// deaths is when letters were given up, and how often they had been redriven before.
type deaths struct {
	at                 []int64 // seconds since 1970
	Redriven, Redrives int     // letters that were, and how often all of them were together
}

func (d *deaths) add(l *letters.Letter) {
	d.addTime(l.DeadAt())
	if l.Redriven.Times > 0 {
		d.Redriven++
		d.Redrives += l.Redriven.Times
	}
}

func (d *deaths) addTime(at time.Time) {
	if !at.IsZero() {
		d.at = append(d.at, at.Unix())
	}
}

// deathsOf returns the deaths of a group. They are not kept for those of other causes.
func (t *tally) deathsOf(group letters.Group) (of deaths) {
	if known := t.causes[group.Cause]; known != nil && !group.Other {
		of = *known
	}
	return of
}

func (t *tally) add(l *letters.Letter) {
	t.groups.Add(l)
	t.Died.add(l)
	cause := l.Cause()
	if t.causes[cause] == nil && len(t.causes) < maxTallied {
		t.causes[cause] = &deaths{}
	}
	if of := t.causes[cause]; of != nil {
		of.add(l)
	}
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

// lastLooks returns what the last look at each queue has seen.
func (p *Page) lastLooks() []*tally {
	p.tallyLock.Lock()
	defer p.tallyLock.Unlock()
	return slices.Collect(maps.Values(p.tallies))
}

// period is from the first to the last of some times. It is zero where there is none.
type period struct{ From, To time.Time }

// Period returns when the letters died.
func (d deaths) Period() (of period) {
	if len(d.at) > 0 {
		of.From, of.To = time.Unix(slices.Min(d.at), 0), time.Unix(slices.Max(d.at), 0)
	}
	return of
}

// bar is one of a histogram.
type bar struct {
	X, Y, Height int
	Text         string
}

// Bars returns a histogram of the times within a period: the fullest bar has a height of 20.
func (d deaths) Bars(of period) (shown []bar) {
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
