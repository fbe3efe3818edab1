package door

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/tasks"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/retry"
)

// OverduePeriod is the time between two looks at the tiers. Tests shorten it before they connect.
var OverduePeriod = 15 * time.Second

const (
	overdueDeadline = 10 * time.Second // the time of a look

	// overdueIntervals between two looks must show that expired messages stay, one after the other: the broker's
	// figures are not all of the same moment.
	overdueIntervals = 2
)

// overdue watches the tiers and inboxes of a Connection: it shows those with messages whose delay is over and which the
// broker does not forward.
type overdue struct {
	api    api
	core   *core // knows the tiers and inboxes
	logger watermill.LoggerAdapter
	tasks  *tasks.Tasks

	// Only the goroutine that looks uses these.
	before map[string]seenQueue // at the last look
	logged bool                 // an error

	mu    sync.Mutex // not held while the app's logger runs
	tiers []retry.TierHealth
	err   error // why the last look failed
}

// api is the management API.
type api interface {
	Queues(ctx context.Context, columns string) (map[string]management.Queue, error)
	Sources(ctx context.Context) (map[string]bool, error)
}

// A seenQueue is a queue with expired messages.
type seenQueue struct {
	management.Queue
	intervals int       // in a row, in which expired messages stayed
	since     time.Time // the look before the first of them
}

// watchOverdue begins to watch. Close it.
func watchOverdue(api api, core *core, logger watermill.LoggerAdapter) *overdue {
	o := &overdue{api: api, core: core, logger: logger, tasks: tasks.New(context.Background())}
	o.tasks.Go(func() { o.run(o.tasks.Context) })
	return o
}

func (o *overdue) close() {
	if o != nil {
		o.tasks.Close()
	}
}

func (o *overdue) run(ctx context.Context) {
	tick := time.NewTicker(OverduePeriod)
	defer tick.Stop()
	for {
		o.look(ctx) // the first one at once: a wrong password must show when the app starts
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look reads once. After an error the last figures stay.
func (o *overdue) look(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, overdueDeadline)
	queues, err := o.api.Queues(within, management.Flows)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		o.set(o.tiers, err)
		if !o.logged {
			o.logged = true
			o.logger.Error("Cannot look for overdue tiers. This is logged once; later reasons are in Health", err, nil)
		}
		return
	}
	before, last := o.before, o.tiers
	var tiers []retry.TierHealth
	o.before = map[string]seenQueue{}
	for _, name := range slices.Sorted(slices.Values(o.core.waiting())) {
		now := seenQueue{Queue: queues[name], since: time.Now()}
		if now.Expired == 0 {
			continue
		}
		if earlier, seen := before[name]; seen && stays(earlier.Queue, now.Queue) {
			now.intervals, now.since = earlier.intervals+1, earlier.since
		}
		o.before[name] = now
		if now.intervals >= overdueIntervals {
			tiers = append(tiers, retry.TierHealth{Queue: name, Overdue: now.Expired, Since: now.since})
		}
	}
	o.set(tiers, nil)
	o.log(last, tiers)
}

func (o *overdue) set(tiers []retry.TierHealth, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tiers, o.err = tiers, err
}

// stays reports whether a message that had expired at an earlier look is still there. Where the arrivals are known,
// fewer messages have left the queue than had expired. Where they are not, there are more than a queue that forwards
// without a fault has.
func stays(earlier, now management.Queue) bool {
	if earlier.Counted && now.Counted {
		arrived, more := now.Published-earlier.Published, now.Messages-earlier.Messages
		return arrived >= 0 && arrived-more < earlier.Expired // the count begins again with the node
	}
	return earlier.Expired > management.ForwardedAtOnce && now.Expired > management.ForwardedAtOnce
}

// log reports the tiers that have become overdue, and those that are no longer.
func (o *overdue) log(last, present []retry.TierHealth) {
	of := func(tiers []retry.TierHealth, queue string) bool {
		return slices.ContainsFunc(tiers, func(t retry.TierHealth) bool { return t.Queue == queue })
	}
	for _, t := range present {
		if !of(last, t.Queue) {
			warning.Log(o.logger, fmt.Sprintf("%d messages on queue %q are overdue: their delay is over, and the "+
				"broker cannot forward them. "+
				"A work queue of theirs is full or away, or nothing is bound to its return exchange. The broker "+
				"tries again every three minutes",
				t.Overdue, t.Queue), watermill.LogFields{"queue": t.Queue})
		}
	}
	for _, t := range last {
		if !of(present, t.Queue) {
			o.logger.Info("No message is overdue any more", watermill.LogFields{"queue": t.Queue})
		}
	}
}

// health returns the overdue tiers, and why the last look has failed.
func (o *overdue) health() (tiers []retry.TierHealth, err string) {
	if o == nil {
		return nil, ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		err = o.err.Error()
	}
	return slices.Clone(o.tiers), err
}
