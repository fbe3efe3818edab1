package page

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

// maxQueues is how many work queues the board shows.
const maxQueues = 200

type boardView struct {
	At      time.Time
	Err     string
	Total   totals
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
	Tiers   []tierRow // the tiers that have messages, or something to say
	Empty   []tierRow // the others
	Waiting int
}

type tierRow struct {
	letters.Tier
	Share int // how full the fullest tier of the board is, from 0 to 100
}

// board shows all queues.
func (p *Page) board(w http.ResponseWriter, r *http.Request) error {
	if p.stores != nil {
		return p.storesBoard(w, r)
	}
	status, err := p.current(r.Context())
	shown := newBoard(status)
	for i, row := range shown.Queues {
		shown.Queues[i].WorkQueue.Partitions = p.partitions(row.WorkQueue)
	}
	shown.Further = p.config.Queues
	shown.Jobs, shown.Asks = p.jobs.views(time.Now()), p.ask != nil
	if err != nil {
		shown.Err = explain(err)
	}
	p.renderLive(w, r, "board", "Board", shown)
	return nil
}

func newBoard(status letters.Status) boardView {
	shown := boardView{At: status.At, Orphans: status.Orphans, Stray: status.Stray[:min(len(status.Stray), maxQueues)]}
	shown.Total.Orphans = status.Orphans.Messages
	fullest, counted := 1, map[string]bool{}
	for _, work := range status.Queues {
		row := workRow{WorkQueue: work, Waiting: work.Inbox.Messages}
		shown.Total.Waiting += work.Inbox.Messages
		for _, tier := range work.Tiers {
			row.Waiting += tier.Messages
			if tier.Messages == 0 && tier.Overdue == 0 && !tier.Retired {
				row.Empty = append(row.Empty, tierRow{Tier: tier})
			} else {
				row.Tiers = append(row.Tiers, tierRow{Tier: tier})
			}
			fullest = max(fullest, tier.Messages)
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
		shown.Unseen = len(shown.Queues) - maxQueues
		shown.Queues = shown.Queues[:maxQueues]
	}
	for _, row := range shown.Queues {
		for i := range row.Tiers {
			row.Tiers[i].Share = (100*row.Tiers[i].Messages + fullest - 1) / fullest
		}
	}
	return shown
}
