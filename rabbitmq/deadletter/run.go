package deadletter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dial"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	progressPause = 100 * time.Millisecond

	// mostBarren is how often in a row a connection may be lost on which no letter was removed, where that reaches no delivery limit.
	mostBarren = 20

	// lockPatience is how long a call waits, after a reconnect, until the broker has removed the lock of its old connection.
	lockPatience = 2 * time.Minute
	// lockPause is how long a call waits for the lock of a command that has just ended.
	lockPause = time.Second
)

// A run is one redrive or discard. It goes on with another look after a lost connection.
type run struct {
	store   *Store
	queue   string
	filter  letters.Filter
	limit   int
	dryRun  bool
	sends   bool // each letter that is acknowledged was sent
	begun   time.Time
	counted bool // summary.Total is known
	barren  int  // how often in a row a connection may be lost on which no letter was removed

	mu       sync.Mutex
	summary  letters.Summary
	phase    letters.Phase
	until    time.Time
	away     error
	report   func(letters.Progress)
	reported time.Time
	unsure   int // of summary.Done: acknowledged since the last look.settle, or since the look began
	maybe    int // not of summary.Done: acknowledged on lost connections, and the broker may not have read that
}

func (s *Store) newRun(queue string, filter letters.Filter, limit int, dryRun bool, report func(letters.Progress)) *run {
	return &run{store: s, queue: queue, filter: filter, limit: limit, dryRun: dryRun, report: report, begun: time.Now(), phase: letters.Looking}
}

// each calls session with a look at the letters that were in the queue at the start and are still there, again after each lost
// connection. changes: the queue is locked, and session removes letters.
func (r *run) each(ctx context.Context, changes bool, session func(context.Context, *look) error) (letters.Summary, error) {
	ctx, end, err := r.store.begin(ctx)
	if err != nil {
		return r.summary, err
	}
	defer end()
	pause := dial.Backoff{Initial: dial.ReconnectInitial, Max: dial.ReconnectMax}
	for barren := 0; ; {
		before := r.summary.Done + r.maybe
		err := r.once(ctx, changes, session)
		if err == nil || !r.counted || !errors.Is(err, errLost) {
			return r.finish(err)
		}
		switch {
		case r.summary.Done+r.maybe > before:
			pause.Reset()
			barren = 0
		case !errors.Is(err, errNotConnected): // a letter may close the connection that it is delivered on
			if barren++; barren >= r.barren {
				return r.finish(fmt.Errorf("%d connections in a row were lost before a letter was removed: %w", barren, err))
			}
		}
		r.wait(err)
		select {
		case <-ctx.Done():
			return r.finish(context.Cause(ctx))
		case <-time.After(pause.Next()):
		}
	}
}

func (r *run) once(ctx context.Context, changes bool, session func(context.Context, *look) error) (err error) {
	connection, err := r.store.connect(ctx)
	if err != nil {
		if r.counted && ctx.Err() == nil {
			return notConnected(err)
		}
		return err
	}
	defer connection.Close()
	if changes && !r.dryRun {
		unlock, err := r.store.lock(ctx, connection, r.queue, r.counted)
		if err != nil {
			return err
		}
		defer unlock()
	}
	least, most := 0, -1
	if r.counted { // what was there at the start, without what is done: the newer ones are behind
		most = r.summary.Total
		if !r.dryRun {
			most -= r.summary.Done
		}
		least = most - r.maybe
	}
	look, err := r.store.look(ctx, connection, r.queue, least, most, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, look.close(ctx)) }()
	r.barren = look.limit.barren()
	if r.sends {
		look.widest = 2 * mostInFlight // what a process that dies can send twice
	}
	r.change(func() {
		if !r.counted {
			r.summary.Total, r.counted = look.left, true
		}
		r.summary.Other, r.summary.Kept, r.away = 0, 0, nil // they are looked at again
		if r.dryRun {
			r.summary.Done = 0
		}
	})
	err = session(ctx, look)
	r.change(func() {
		switch {
		case errors.Is(err, errLost): // these letters come again, or they do not
			unsure := min(r.unsure, look.widest) // the broker has delivered others in place of those before
			if r.sends {
				r.summary.Doubtful += unsure
			}
			r.summary.Done, r.maybe = r.summary.Done-unsure, r.maybe+unsure
		case err == nil: // they did not
			gone := min(look.missing, r.maybe)
			r.summary.Done, r.maybe = r.summary.Done+gone, r.maybe-gone
			err = r.taken(look.missing - gone)
		}
		r.unsure = 0
	})
	return err
}

// taken returns an error for letters that were counted, and that another reader has. From a tier they go home by themselves.
func (r *run) taken(letters int) error {
	_, _, isTier := r.store.prefix.TierOf(r.queue)
	if letters == 0 || isTier {
		return nil
	}
	return fmt.Errorf("%d letters were not looked at: another reader of %q has taken them, for example a list of the letters; run this again when it has ended",
		letters, r.queue)
}

// errNotConnected is the error of a broker that does not accept a connection.
var errNotConnected = errors.New("the broker is away")

// notConnected makes an errLost of the error of a connection that could not be made, unless the broker refuses the user.
func notConnected(err error) error {
	if refusal.IsCode(err, amqp091.AccessRefused) {
		return err
	}
	return fmt.Errorf("%w: %w: %w", errLost, errNotConnected, err)
}

// lock makes this connection the only one that changes a queue, until unlock. again: an earlier connection of this call may still have the
// lock.
func (s *Store) lock(ctx context.Context, connection *dial.Connection, queue string, again bool) (unlock func(), err error) {
	deadline := time.Now().Add(lockPause)
	if again {
		deadline = time.Now().Add(lockPatience)
	}
	name := queue + ".lock"
	for {
		channel, err := connection.Channel(func(channel *amqp091.Channel) error {
			if _, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
				return explain("change", queue, err)
			}
			_, err := channel.QueueDeclare(name, false, false, true, false, amqp091.Table{"x-queue-type": "classic"})
			return err
		})
		switch {
		case err == nil: // the broker removes the lock only some time after the connection is closed
			return func() { _, _ = channel.QueueDelete(name, false, false, false) }, nil
		case errors.Is(err, letters.ErrNoQueue):
			return nil, err
		case refusal.IsCode(err, amqp091.ResourceLocked):
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("%w: %q is locked by the exclusive queue %q of another connection; wait until that one has ended", letters.ErrBusy, queue, name)
			}
		case refusal.IsCode(err, amqp091.AccessRefused):
			return nil, fmt.Errorf("cannot lock %q against a second redrive: %w: the user needs the permission to configure the queue %q", queue, err, name)
		default:
			return nil, explain("lock", queue, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(dial.ReconnectInitial):
		}
	}
}

// change changes the summary, and reports it unless that was done just before.
func (r *run) change(set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set()
	r.tell(false)
}

func (r *run) tell(always bool) {
	now := time.Now()
	if r.report == nil || !always && now.Sub(r.reported) < progressPause {
		return
	}
	r.reported = now
	p := letters.Progress{Summary: r.adding(), Phase: r.phase, Elapsed: now.Sub(r.begun), Until: r.until}
	if r.away != nil {
		p.Phase, p.Err = letters.Waiting, r.away
	}
	r.report(p)
}

// adding returns the summary with the letters that were not looked at.
func (r *run) adding() letters.Summary {
	summary := r.summary
	summary.Unseen = summary.Total - summary.Done - summary.Other - summary.Kept
	return summary
}

// enter begins a phase. until is zero but for letters.Watching.
func (r *run) enter(phase letters.Phase, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.until = phase, until
	r.tell(true)
}

// wait reports that the broker is away, or with nil that it is back.
func (r *run) wait(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if (r.away == nil) == (err == nil) {
		return
	}
	r.away = err
	r.tell(true)
}

func (r *run) finish(err error) (letters.Summary, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.until, r.away, r.summary = letters.Ended, time.Time{}, nil, r.adding()
	r.tell(true)
	return r.summary, err
}

// acknowledge removes a letter whose copy is confirmed, or that is discarded.
func (r *run) acknowledge(look *look, d *amqp091.Delivery) error {
	if err := look.remove(d); err != nil {
		return err
	}
	r.change(func() { r.summary.Done++; r.unsure++ })
	return nil
}

// sure waits until the queue has removed the letters that are acknowledged.
func (r *run) sure(l *look) error {
	if err := l.settle(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure = 0
	return nil
}
