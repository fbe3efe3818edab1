package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

// arrivalsIn is how far back dead letters count as new.
const arrivalsIn = 10 * time.Minute

// Over returns a page over several: a first view of all of them, and each one below it, under "@" and its name. The
// first view takes no letter, until it is asked for causes: then it looks at all queues with letters. Close and
// Summaries are those of all of them. A page can be below one other page only.
func Over(pages map[string]*Page) (*Page, error) {
	if len(pages) == 0 {
		return nil, errors.New("page.Over has no pages: name at least one")
	}
	names := slices.Sorted(maps.Keys(pages))
	for _, name := range names {
		switch {
		case name == "" || strings.Contains(name, "/"):
			return nil, fmt.Errorf("page.Over: the name %q must not be empty or have a slash: it is a part of an address",
				name)
		case pages[name] == nil:
			return nil, fmt.Errorf("page.Over: the page %q is nil", name)
		}
	}
	config := pages[names[0]].config
	over := &Page{config: config, templates: pages[names[0]].templates, stores: pages}
	for _, one := range pages {
		one.below = true
	}
	return over, nil
}

// storeOf returns the page of one store that a path is below, or nil.
func (p *Page) storeOf(of string) *Page {
	folder, _ := path.Split(of)
	if name, below := strings.CutPrefix(path.Base(folder), "@"); below {
		return p.stores[name]
	}
	return nil
}

// arrivals counts dead letters that were not there before, as far as the status was read.
type arrivals struct {
	since time.Time
	last  map[string]int
	came  []arrival
}

type arrival struct {
	at time.Time
	n  int
}

func (a *arrivals) see(status letters.Status) {
	now, n, first := time.Now(), 0, a.last == nil
	last := make(map[string]int, len(status.Queues))
	for _, work := range status.Queues {
		last[work.Dead.Queue] = work.Dead.Messages
		if before, known := a.last[work.Dead.Queue]; known || !first {
			n += max(0, work.Dead.Messages-before)
		}
	}
	if a.last = last; first {
		a.since = now
	}
	a.since = later(a.since, now.Add(-arrivalsIn))
	a.came = slices.DeleteFunc(append(a.came, arrival{now, n}),
		func(c arrival) bool { return c.n == 0 || c.at.Before(a.since) })
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// text returns how many are new, and in what time.
func (a *arrivals) text() string {
	n := 0
	for _, c := range a.came {
		n += c.n
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s new in %s", number(n), span(time.Since(a.since)))
}

type storesView struct {
	Rows   []storeRow
	Causes []sharedCause
	Hidden int // causes that are not shown
	Looked bool
}

// storeRow is one store. Its oldest letter is known after a look.
type storeRow struct {
	Name, Err, New string
	Total          totals
	Oldest, Looked time.Time
}

// sharedCause is a cause with its letters of all stores.
type sharedCause struct {
	letters.Group
	Bars []bar
	In   []causeIn
}

type causeIn struct {
	Store string
	selection
	Count int
}

// storesBoard shows all stores. With the parameter part it is only what changes.
func (p *Page) storesBoard(w http.ResponseWriter, r *http.Request) error {
	names := slices.Sorted(maps.Keys(p.stores))
	shown := storesView{Rows: make([]storeRow, len(names))}
	var asked sync.WaitGroup
	for i, name := range names {
		asked.Go(func() { shown.Rows[i] = p.stores[name].row(r.Context(), name) })
	}
	asked.Wait()
	p.shareCauses(&shown)
	name := "stores.html"
	if r.URL.Query().Get("part") != "" {
		name = "stores-part"
	}
	p.render(w, http.StatusOK, name, "All stores", shown)
	return nil
}

// row returns the figures of a store for the first view.
func (p *Page) row(ctx context.Context, name string) storeRow {
	status, err := p.current(ctx)
	row := storeRow{Name: name, Total: newBoard(status).Total}
	if err != nil {
		row.Err = explain(err)
	}
	p.statusLock.Lock()
	defer p.statusLock.Unlock()
	row.New = p.arrivals.text()
	for _, t := range p.tallies {
		row.Looked = later(row.Looked, t.At)
		if from := periodOf(t.all.at).From; !from.IsZero() && (row.Oldest.IsZero() || from.Before(row.Oldest)) {
			row.Oldest = from
		}
	}
	return row
}

// shareCauses adds the causes that the last looks have seen.
func (p *Page) shareCauses(shown *storesView) {
	all, died := map[string]*sharedCause{}, map[string]*deaths{}
	var times []int64
	for store, one := range p.stores {
		one.statusLock.Lock()
		tallies := slices.Collect(maps.Values(one.tallies))
		one.statusLock.Unlock()
		for _, t := range tallies {
			shown.Looked = true
			times = append(times, t.all.at...)
			for _, group := range t.groups.Sorted() {
				if group.Other {
					continue
				}
				id := group.ID()
				cause := all[id]
				if cause == nil {
					cause = &sharedCause{Group: group}
					cause.Count = 0
					all[id], died[id] = cause, &deaths{}
				}
				cause.Count += group.Count
				if of := t.causes[group.Cause]; of != nil {
					died[id].at = append(died[id].at, of.at...)
				}
				cause.In = append(cause.In, causeIn{store, selection{Queue: t.Queue, Cause: id}, group.Count})
			}
		}
	}
	of := periodOf(times)
	for _, id := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b].Count, all[a].Count), cmp.Compare(a, b))
	}) {
		if len(shown.Causes) == maxGroups {
			shown.Hidden = len(all) - maxGroups
			break
		}
		cause := all[id]
		seen := periodOf(died[id].at)
		cause.First, cause.Last, cause.Bars = seen.From, seen.To, died[id].bars(of)
		slices.SortFunc(cause.In, func(a, b causeIn) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Store, b.Store), cmp.Compare(a.Queue, b.Queue))
		})
		cause.In = cause.In[:min(len(cause.In), maxGroups)]
		shown.Causes = append(shown.Causes, *cause)
	}
}

// lookAtAll looks at all queues with letters of all stores, as long as one view may, and shows the first view.
func (p *Page) lookAtAll(w http.ResponseWriter, r *http.Request) error {
	var looks sync.WaitGroup
	for _, one := range p.stores {
		looks.Go(func() {
			ctx, cancel := context.WithTimeout(r.Context(), one.config.Timeout)
			defer cancel()
			status, _ := one.current(ctx) // the first view shows the error
			for _, queue := range one.lettersOf(status) {
				if ctx.Err() == nil {
					_, _ = one.tallied(ctx, queue)
				}
			}
		})
	}
	looks.Wait()
	see(w, "./")
	return nil
}

// lettersOf returns the queues that have letters, or may have some.
func (p *Page) lettersOf(status letters.Status) (queues []string) {
	for _, work := range status.Queues {
		if work.Dead.Messages > 0 {
			queues = append(queues, work.Dead.Queue)
		}
	}
	if status.Orphans.Messages > 0 {
		queues = append(queues, status.Orphans.Queue)
	}
	return append(queues, p.config.Queues...)
}
