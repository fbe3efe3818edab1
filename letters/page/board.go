package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

// maxQueues is how many work queues the board shows.
const maxQueues = 200

type boardView struct {
	At      time.Time
	Err     string
	Total   totals
	Fullest int // messages of the fullest tier
	Queues  []workRow
	Unseen  int // work queues that are not shown
	Orphans letters.Depth
	Stray   []letters.Depth
	Further []string
	Jobs    []jobView
	Asks    bool // processes can be asked for the keys of their handlers
}

type totals struct{ Ready, Unacked, Waiting, Dead, Orphans int }

type workRow struct {
	letters.WorkQueue
	Tiers   []letters.Tier // tiers that have messages, or something to say
	Empty   []letters.Tier // the other tiers
	Waiting int
}

// board shows all queues.
func (p *Page) board(w http.ResponseWriter, r *http.Request) error {
	if p.stores != nil {
		return p.storesBoard(w, r)
	}
	status, err := p.current(r.Context())
	shown := newBoard(status)
	shown.Err, shown.Further = explain(err), p.config.Queues
	shown.Jobs, shown.Asks = p.jobs.views(), p.ask != nil
	p.renderLive(w, r, "board", "Board", shown)
	return nil
}

func newBoard(status letters.Status) boardView {
	shown := boardView{At: status.At, Orphans: status.Orphans}
	shown.Stray, _ = first(maxQueues, status.Stray)
	shown.Total.Orphans = status.Orphans.Messages
	counted := map[string]bool{}
	for _, work := range status.Queues {
		row := workRow{WorkQueue: work, Waiting: work.Inbox.Messages}
		shown.Total.Waiting += work.Inbox.Messages
		for _, tier := range work.Tiers {
			row.Waiting += tier.Messages
			if tier.Messages == 0 && tier.Overdue == 0 && !tier.Retired {
				row.Empty = append(row.Empty, tier)
			} else {
				row.Tiers = append(row.Tiers, tier)
			}
			shown.Fullest = max(shown.Fullest, tier.Messages)
			if tier.Queue == "" || !counted[tier.Queue] { // the work queues of a group have the same ones
				counted[tier.Queue] = true
				shown.Total.Waiting += tier.Messages
			}
		}
		shown.Total.Ready += max(0, work.Ready)
		shown.Total.Unacked += work.Unacked
		shown.Total.Dead += work.Dead.Messages
		shown.Queues = append(shown.Queues, row)
	}
	if len(shown.Queues) > maxQueues {
		slices.SortStableFunc(shown.Queues,
			func(a, b workRow) int { return cmp.Compare(b.Dead.Messages, a.Dead.Messages) })
	}
	shown.Queues, shown.Unseen = first(maxQueues, shown.Queues)
	return shown
}

// rowTimeout is how long the first view waits for a store: one that does not answer must not keep the others back.
const rowTimeout = 2 * time.Second

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
		if name == "" || strings.Contains(name, "/") || pages[name] == nil {
			return nil, fmt.Errorf("page.Over: pages[%q] cannot be shown: the name is a part of an address, so it must not be "+
				"empty or have a slash, and the page must not be nil", name)
		}
		pages[name].below = true
	}
	return &Page{config: pages[names[0]].config, templates: pages[names[0]].templates, stores: pages}, nil
}

// storeOf returns the page of one store that a path is below, or nil.
func (p *Page) storeOf(of string) *Page {
	folder, _ := path.Split(of)
	if name, below := strings.CutPrefix(path.Base(folder), "@"); below {
		return p.stores[name]
	}
	return nil
}

// folderOf is the address of the page of a store, from the first view.
func folderOf(name string) template.URL { return template.URL("@" + url.PathEscape(name) + "/") }

// arrivals counts dead letters that were not there before, as far as the status was read.
type arrivals struct {
	dead map[string]int // the number of dead letters, by queue
	seen []arrival      // the oldest first
}

// arrival is how many letters had come since the status before.
type arrival struct {
	at time.Time
	n  int
}

func (a *arrivals) see(status letters.Status) {
	now, dead := arrival{at: time.Now()}, map[string]int{}
	for _, work := range status.Queues {
		dead[work.Dead.Queue] = work.Dead.Messages
		now.n += max(0, work.Dead.Messages-a.dead[work.Dead.Queue])
	}
	a.dead, a.seen = dead, append(a.seen, now)
	for len(a.seen) > 1 && now.at.Sub(a.seen[1].at) >= arrivalsIn {
		a.seen = a.seen[1:]
	}
}

// count returns how many are new, and in what time.
func (a *arrivals) count() (letterCount int, in time.Duration) {
	if len(a.seen) == 0 {
		return 0, 0
	}
	begin, later := a.seen[0].at, a.seen[1:] // what was there at the begin is not new
	for _, one := range later {
		letterCount, in = letterCount+one.n, one.at.Sub(begin)
	}
	return letterCount, in
}

type storesView struct {
	Rows   []storeRow
	Causes []*causeRow
	Hidden int // causes that are not shown
	Looked bool
	Died   deaths
}

// storeRow is one store. Its oldest letter is that of the status, or else of the last looks.
type storeRow struct {
	Name, Err      string
	New            int           // dead letters that have come
	In             time.Duration // the time in which they have come
	Total          totals
	Oldest, Looked time.Time
}

type causeIn struct {
	Store string
	selection
	Count int
}

// storesBoard shows all stores.
func (p *Page) storesBoard(w http.ResponseWriter, r *http.Request) error {
	names := slices.Sorted(maps.Keys(p.stores))
	shown := storesView{Rows: make([]storeRow, len(names))}
	ctx, cancel := context.WithTimeout(r.Context(), rowTimeout)
	defer cancel()
	answers := make(chan storeRow, len(names))
	for i, name := range names {
		shown.Rows[i] = storeRow{Name: name, Err: "The store has not answered yet."}
		go func() { answers <- p.stores[name].row(r.Context(), name) }()
	}
	for range names {
		select {
		case row := <-answers:
			shown.Rows[slices.Index(names, row.Name)] = row
		case <-ctx.Done():
		}
	}
	p.shareCauses(&shown)
	p.renderLive(w, r, "stores", "All stores", shown)
	return nil
}

// row returns the figures of a store for the first view.
func (p *Page) row(ctx context.Context, name string) storeRow {
	status, err := p.current(ctx)
	row := storeRow{Name: name, Err: explain(err), Total: newBoard(status).Total}
	var died deaths
	for _, work := range status.Queues {
		died.addTime(work.OldestDead)
	}
	p.statusLock.Lock()
	row.New, row.In = p.arrivals.count()
	p.statusLock.Unlock()
	for _, t := range p.lastLooks() {
		if t.At.After(row.Looked) {
			row.Looked = t.At
		}
		died.at = append(died.at, t.Died.at...)
	}
	row.Oldest = died.Period().From
	return row
}

// shareCauses adds the causes that the last looks have seen.
func (p *Page) shareCauses(shown *storesView) {
	all := map[string]*causeRow{}
	for store, one := range p.stores {
		for _, t := range one.lastLooks() {
			shown.Looked = true
			shown.Died.at = append(shown.Died.at, t.Died.at...)
			for _, group := range t.groups.Sorted() {
				if group.Other {
					continue
				}
				id := group.ID()
				if all[id] == nil {
					all[id] = &causeRow{Group: letters.Group{Cause: group.Cause}}
				}
				cause := all[id]
				cause.Count += group.Count
				cause.at = append(cause.at, t.deathsOf(group).at...)
				cause.In = append(cause.In, causeIn{store, selection{Queue: t.Queue}.Of(group.Cause), group.Count})
			}
		}
	}
	sorted := slices.SortedFunc(maps.Values(all), func(a, b *causeRow) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.ID(), b.ID()))
	})
	shown.Causes, shown.Hidden = first(maxGroups, sorted)
	for _, cause := range shown.Causes {
		seen := cause.Period()
		cause.First, cause.Last = seen.From, seen.To
		slices.SortFunc(cause.In, func(a, b causeIn) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Store, b.Store), cmp.Compare(a.Queue, b.Queue))
		})
		cause.In, _ = first(maxGroups, cause.In)
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
			one.tallyLock.Lock()
			one.tallies = nil // of queues that have no letters any more, too
			one.tallyLock.Unlock()
			for _, queue := range one.lettersOf(status) {
				if ctx.Err() == nil {
					_, _ = one.tallied(ctx, queue)
				}
			}
		})
	}
	looks.Wait()
	return see(w, "./")
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
