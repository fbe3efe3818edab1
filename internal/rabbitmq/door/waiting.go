package door

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const (
	// mostRequests bounds the AMQP requests of one look. Each is a round trip. The next look goes on with the rest.
	mostRequests = 500

	lookTimeout = 10 * time.Second // the time of a look whose caller has set no deadline

	mostCounts = 3 // looks at a queue whose number of messages is 0 now, and was not
)

// A lookout looks at what waits in the work queues of the connection's handlers, in their tiers and dead-letter queues,
// and in the queue of the orphans. Dead letters and orphans are asked for first, then work queues, then tiers. Requests
// begin in the first four fifths of the time only. Tiers of earlier schedules are shown while they have messages, where
// the management API lists them. It reads no message. It is safe for concurrent use: one look runs at a time.
type lookout struct {
	core     *core // knows the queues
	api      api   // nil: there is no management API
	channels channels

	// closing ends with the Connection. The goroutine that waits for a channel does not end with a look: each look
	// would leave one behind.
	closing context.Context

	turn chan struct{} // has an element while a look runs

	// Only the look whose turn it is uses these.
	depths map[string]management.Queue // the depths of the queues that exist
	asked  map[string]bool             // the queues of this round over all of them
}

// channels opens channels: it is the connection for publishing.
type channels interface {
	Channel(ctx context.Context) (*amqp091.Channel, error)
}

// A watchedQueue is a queue of the connection.
type watchedQueue struct {
	kind backend.WaitingKind
	name string
	tier backoff.Tier
}

func newLookout(closing context.Context, core *core, api api, channels channels) *lookout {
	return &lookout{
		closing: closing, core: core, api: api, channels: channels, turn: make(chan struct{}, 1),
		depths: map[string]management.Queue{}, asked: map[string]bool{},
	}
}

// waiting is a backend.Waiter. It runs a look in a goroutine: the calls of a channel do not end with a context. Where
// the broker does not answer, the goroutine ends with the connection, and there is only one of them.
func (l *lookout) waiting(ctx context.Context) ([]backend.Waiting, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lookTimeout)
		defer cancel()
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("an earlier look at the queues has not ended: the broker does not answer: %w",
			context.Cause(ctx))
	}
	type result struct {
		waiting []backend.Waiting
		err     error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = panics.Error("the look at the queues", func() (err error) {
			r.waiting, err = l.look(ctx)
			return err
		})
		<-l.turn
		done <- r
	}()
	select {
	case r := <-done:
		return r.waiting, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the broker has not answered in time: %w", context.Cause(ctx))
	}
}

// look looks once.
func (l *lookout) look(ctx context.Context) ([]backend.Waiting, error) {
	queues := l.queues()
	listed, refused := l.list(ctx)
	if listed != nil {
		queues = l.retired(queues, listed)
		clear(l.depths)
		for _, q := range queues {
			if depth := listed[q.name]; depth.Stated {
				l.depths[q.name] = depth
			}
		}
	}
	b := &bounded{lookout: l, until: fourFifths(ctx), ctx: ctx}
	defer b.close()
	if listed == nil {
		if err := l.ask(b, queues); err != nil {
			return nil, errors.Join(refused, err)
		}
	}
	return l.waitings(queues, time.Now()), nil
}

// fourFifths is the time until which a look begins requests.
func fourFifths(ctx context.Context) time.Time {
	deadline, _ := ctx.Deadline()
	return deadline.Add(-time.Until(deadline) / 5)
}

// list asks the management API, for half of the time. It returns nil where there is none, or where it fails.
func (l *lookout) list(ctx context.Context) (map[string]management.Queue, error) {
	if l.api == nil {
		return nil, nil
	}
	deadline, _ := ctx.Deadline()
	within, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	return l.api.Queues(within, management.Depths)
}

// queues returns the queues of the connection in the order in which they are asked for.
func (l *lookout) queues() (all []watchedQueue) {
	works := l.core.workQueues()
	prefix := l.core.prefix
	if len(works) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(works))
	all = append(all, watchedQueue{kind: backend.WaitingOrphans, name: prefix.Orphans()})
	for _, work := range names {
		all = append(all, watchedQueue{kind: backend.WaitingDead, name: naming.DeadQueue(work)})
	}
	for _, work := range names {
		all = append(all, watchedQueue{kind: backend.WaitingWork, name: work})
	}
	seen := map[string]bool{} // the tiers of a group belong to several work queues
	for _, work := range names {
		for _, queue := range works[work].Queues {
			name := queue.Name
			_, tier, isTier := prefix.TierOf(name)
			switch {
			case seen[name]:
			case isTier:
				all = append(all, watchedQueue{backend.WaitingTier, name, tier})
			case name == prefix.InboxQueue(work):
				all = append(all, watchedQueue{kind: backend.WaitingInbox, name: name})
			}
			seen[name] = true
		}
	}
	return all
}

// retired adds the tiers of earlier schedules that have messages.
func (l *lookout) retired(queues []watchedQueue, listed map[string]management.Queue) []watchedQueue {
	known, groups := map[string]bool{}, map[string]bool{}
	for _, q := range queues {
		known[q.name] = true
		if q.kind == backend.WaitingWork {
			groups[q.name] = true
		}
		if group, _, isTier := l.core.prefix.TierOf(q.name); isTier {
			groups[group] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		group, tier, isTier := l.core.prefix.TierOf(name)
		if isTier && groups[group] && !known[name] && listed[name].Messages > 0 {
			queues = append(queues, watchedQueue{backend.WaitingTier, name, tier})
		}
	}
	return queues
}

// ask asks for the queues.
func (l *lookout) ask(b *bounded, queues []watchedQueue) error {
	if !slices.ContainsFunc(queues, func(q watchedQueue) bool { return !l.asked[q.name] }) {
		clear(l.asked)
	}
	for _, q := range queues {
		if l.asked[q.name] {
			continue
		}
		if b.used() {
			return nil
		}
		if err := l.count(b, q.name); err != nil {
			return err
		}
		l.asked[q.name] = true
	}
	return nil
}

// count asks how many messages a queue has. A number that falls to 0 is asked for again: a busy quorum queue states 0.
func (l *lookout) count(b *bounded, name string) error {
	before := l.depths[name]
	for tries := 1; ; tries++ {
		state, err := b.declare(name)
		switch {
		case err == nil:
		case b.lost():
			return fmt.Errorf("cannot look at queue %q: %w", name, err)
		case refusal.IsCode(err, amqp091.NotFound):
			delete(l.depths, name)
			return nil
		default:
			return nil // for example another process has the queue for itself
		}
		if state.Messages == 0 && before.Messages > 0 && tries < mostCounts {
			continue
		}
		before.Messages, before.Consumers = state.Messages, state.Consumers
		l.depths[name] = before
		return nil
	}
}

// waitings returns the figures of the queues that exist.
func (l *lookout) waitings(queues []watchedQueue, now time.Time) (all []backend.Waiting) {
	for _, q := range queues {
		depth, exists := l.depths[q.name]
		if !exists {
			continue
		}
		w := backend.Waiting{Kind: q.kind, Queue: q.name, Tier: q.tier, Messages: depth.Messages}
		if q.tier > 0 && w.Messages > 0 {
			w.NextDue = now.Add(time.Duration(q.tier)) // the broker does not show how long the first one has waited
		}
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b backend.Waiting) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Queue, b.Queue))
	})
	return all
}

// bounded makes the AMQP requests of one look. The broker closes its channel when it refuses one: the next request
// opens another.
type bounded struct {
	lookout  *lookout
	ctx      context.Context
	until    time.Time // when no further request begins
	requests int
	channel  *amqp091.Channel
	failed   error // there is no channel
}

// used reports whether the requests or the time of the look are used up. It has time for one request at least.
func (b *bounded) used() bool {
	return b.requests >= mostRequests || b.requests > 0 && !time.Now().Before(b.until)
}

func (b *bounded) ready() error {
	if b.failed == nil {
		b.failed = context.Cause(b.ctx)
	}
	if b.failed == nil && (b.channel == nil || b.channel.IsClosed()) {
		b.channel, b.failed = b.lookout.channels.Channel(b.lookout.closing)
	}
	b.requests++
	return b.failed
}

func (b *bounded) declare(queue string) (state amqp091.Queue, err error) {
	if err = b.ready(); err == nil {
		state, err = b.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil && wire.IsLost(err) {
			b.failed = err
		}
	}
	return state, err
}

// lost reports whether no further request can succeed.
func (b *bounded) lost() bool { return b.failed != nil }

func (b *bounded) close() {
	if b.channel != nil {
		_ = b.channel.Close()
	}
}
