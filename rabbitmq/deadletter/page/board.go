package page

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	maxQueues = 200 // work queues that the board shows
	// overdueAge is how long a tier must be overdue before that is a fault. One that works has a few overdue messages
	// at most moments.
	overdueAge = 15 * time.Second
	// overdueGap is the longest time between two looks that count as one after the other.
	overdueGap = time.Minute
)

type boardView struct {
	At     time.Time
	Err    string
	Total  totals
	Queues []workRow
	Unseen int // work queues that are not shown
	// Tiered is true where Status shows tiers. Without the management API it does not, and its other zeros can be
	// unknown numbers.
	Tiered   bool
	Orphans  deadletter.Depth
	Stray    []deadletter.Depth
	Further  []string
	Handlers []handlerRow
	Jobs     []jobView
}

type totals struct{ Ready, Unacked, Waiting, Dead, Orphans int }

type workRow struct {
	deadletter.WorkQueue
	Tiers   []tierRow
	Waiting int
}

type tierRow struct {
	deadletter.Tier
	Share int  // of the fullest tier of the board, from 0 to 100
	Stuck bool // it has been overdue for overdueAge
}

type handlerRow struct {
	retry.SubscriptionHealth
	ByHand bool // paused by Pause
	Error  string
}

// board shows all queues. With the parameter part it is only what changes.
func (p *Page) board(w http.ResponseWriter, r *http.Request) error {
	status, stuck, err := p.current(r.Context())
	shown := newBoard(status, stuck)
	shown.Further = p.config.Queues
	shown.Jobs = p.jobs.views(time.Now())
	if err != nil {
		shown.Err = explain(err)
	}
	if p.config.Pauser != nil {
		shown.Handlers = handlerRows(p.config.Pauser.Health())
		shown.explainPauses()
	}
	name := "board.html"
	if r.URL.Query().Get("part") != "" {
		name = "board-part"
	}
	p.render(w, http.StatusOK, name, "Board", shown)
	return nil
}

// explainPauses shows the pauses of this process, which the broker cannot show.
func (v *boardView) explainPauses() {
	for i := range v.Queues {
		row := &v.Queues[i]
		paused := func(h handlerRow) bool { return h.Queue == row.Name && len(h.Paused) > 0 }
		if row.NoConsumer != "" && slices.ContainsFunc(v.Handlers, paused) {
			row.NoConsumer = "paused in this process"
		}
	}
}

// newBoard returns the board. stuck are the tiers that have been overdue for overdueAge.
func newBoard(status deadletter.Status, stuck map[string]bool) boardView {
	shown := boardView{At: status.At, Tiered: len(status.Stray) > 0, Orphans: status.Orphans,
		Stray: status.Stray[:min(len(status.Stray), maxQueues)]}
	shown.Total.Orphans = status.Orphans.Messages
	fullest, counted := 1, map[string]bool{}
	for _, work := range status.Queues {
		row := workRow{WorkQueue: work, Waiting: work.Inbox.Messages}
		shown.Total.Waiting += work.Inbox.Messages
		for _, tier := range work.Tiers {
			shown.Tiered = true
			row.Waiting += tier.Messages
			row.Tiers = append(row.Tiers, tierRow{Tier: tier, Stuck: stuck[tier.Queue]})
			fullest = max(fullest, tier.Messages)
			if !counted[tier.Queue] { // the work queues of a group have the same ones
				counted[tier.Queue] = true
				shown.Total.Waiting += tier.Messages
			}
		}
		shown.Total.Ready += work.Ready
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

// overdue is since when tiers have been overdue at every look.
type overdue struct {
	since map[string]time.Time
	last  time.Time // the last look
}

// look returns the tiers that have been overdue for overdueAge.
func (o *overdue) look(status deadletter.Status, now time.Time) map[string]bool {
	before := o.since
	if now.Sub(o.last) > overdueGap {
		before = nil
	}
	o.since, o.last = map[string]time.Time{}, now
	stuck := map[string]bool{}
	for _, work := range status.Queues {
		for _, tier := range work.Tiers {
			if tier.Overdue == 0 {
				continue
			}
			since, found := before[tier.Queue]
			if !found {
				since = now
			}
			o.since[tier.Queue] = since
			if now.Sub(since) >= overdueAge {
				stuck[tier.Queue] = true
			}
		}
	}
	return stuck
}

// handlerRows returns one row for each subscription.
func handlerRows(health retry.Health) (rows []handlerRow) {
	for _, subscription := range health.Subscriptions {
		row := handlerRow{SubscriptionHealth: subscription, ByHand: slices.Contains(subscription.Paused, "paused")}
		if !subscription.Consuming {
			row.Error = subscription.LastError
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows,
		func(a, b handlerRow) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Queue, b.Queue)) })
	return rows
}

func (p *Page) pause(w http.ResponseWriter, r *http.Request) error {
	return p.switchHandler(w, r, "paused", Pauser.Pause)
}

func (p *Page) resume(w http.ResponseWriter, r *http.Request) error {
	return p.switchHandler(w, r, "resumed", Pauser.Resume)
}

func (p *Page) switchHandler(
	w http.ResponseWriter, r *http.Request, done string, change func(Pauser, string) error,
) error {
	if p.config.Pauser == nil {
		return failure{http.StatusNotFound, "This page has no handlers.", nil}
	}
	handler := r.URL.Query().Get("handler")
	if err := change(p.config.Pauser, handler); err != nil {
		return failure{http.StatusBadRequest, "The handler cannot be " + done + ".", err}
	}
	p.config.Logger.Info("A handler was "+done+" on the dead-letter page",
		watermill.LogFields{"handler": handler, "by": p.config.By(r)})
	see(w, "./")
	return nil
}

// see makes the browser show another page. The address stays relative, which http.Redirect would not keep.
func see(w http.ResponseWriter, address string) {
	w.Header().Set("Location", address)
	w.WriteHeader(http.StatusSeeOther)
}
