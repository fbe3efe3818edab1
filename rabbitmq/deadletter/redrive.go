package deadletter

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// mostInFlight is how many letters are sent and not yet confirmed.
	mostInFlight = 128
	// placeSize is how many bytes of a body take one of these places, so that letters in flight have at most 32 MiB or are few.
	placeSize = 256 << 10
	// redeadPause is how often a redrive looks for letters that died again.
	redeadPause = time.Second
)

// A redrive is a run that sends letters.
type redrive struct {
	*run
	options letters.Redrive
	id      string // of the entry in each letter's history
	user    string // of the connection
	orphans bool
	through string // the exchange that messages go to with their own routing key; empty: letters go to their work queue
	sender  *sender

	flights  *flights
	failed   chan error        // the first error that ends the redrive
	next     time.Time         // when the next letter may be sent, with a Rate
	gone     map[string]error  // by target: nil for those that are there
	stays    error             // the first error of a letter that stays, while the redrive goes on
	canary   []*letters.Letter // those that were sent. Of run.mu
	lives    time.Time         // when the canary has lived, if none of it dies before
	watched  bool              // the canary has lived
	foreign  int               // letters that arrived and are not of this redrive
	looked   time.Time
	searched time.Duration // how long the last search for them took
}

// Redrive implements letters.Store. A letter goes to its work queue itself, through the default exchange; an orphan to the exchange
// <prefix>.return with the routing key that it came with. Letters whose work queue is gone stay, and the error names each of these
// queues and wraps letters.ErrNoTarget. A work queue that refuses a letter, such as a full one, ends the redrive. While the broker is
// away, Redrive waits, and then goes on.
func (s *Store) Redrive(ctx context.Context, queue string, options letters.Redrive) (letters.Summary, error) {
	if err := options.Validate(); err != nil {
		return letters.Summary{}, err
	}
	through := ""
	if queue == s.Orphans() {
		through = s.prefix.ReturnExchange()
	}
	return s.redrive(ctx, queue, through, options)
}

func (s *Store) redrive(ctx context.Context, queue, through string, options letters.Redrive) (letters.Summary, error) {
	options.By = cmp.Or(options.By, lettertext.UserAtHost())
	r := &redrive{
		run: s.newRun(queue, options.Filter, options.Limit, options.DryRun, options.Progress), options: options, id: rand.Text()[:12],
		user: s.user(), orphans: queue == s.Orphans(), through: through, gone: map[string]error{}, failed: make(chan error, 1),
	}
	if !options.DryRun {
		sender, err := s.newSender()
		if err != nil {
			return letters.Summary{}, err
		}
		defer sender.close()
		sender.waiting = r.wait
		r.sender, r.sends = sender, true
	}
	summary, err := r.each(ctx, true, r.session)
	return summary, errors.Join(append([]error{err, r.stays}, r.goneErrors()...)...)
}

func (s *Store) user() string {
	uri, err := amqp091.ParseURI(s.config.URI)
	if err != nil {
		return ""
	}
	return uri.Username
}

// session goes through the letters of one look.
func (r *redrive) session(ctx context.Context, look *look) error {
	r.flights = newFlights()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := r.all(ctx, look)
	if err != nil {
		cancel(err) // letters that wait for the broker to come back stay
	}
	r.flights.group.Wait()
	select {
	case failed := <-r.failed:
		if err == nil || errors.Is(err, errLost) {
			err = failed
		}
	default:
	}
	if err == nil {
		err = r.sure(look)
	}
	if err == nil && (r.options.Canary > 0 || r.options.MaxRedead > 0) && !r.dryRun {
		err = r.count(ctx, look)
	}
	return err
}

// all sends letters until there are no more, the limit is reached, or one has failed.
func (r *redrive) all(ctx context.Context, look *look) error {
	for !r.limitReached() && len(r.failed) == 0 {
		if r.isCanary() {
			r.enterOnce(letters.Canary)
			if r.canarySent() {
				if err := r.watch(ctx, look); err != nil {
					return err
				}
			}
		}
		if err := r.check(ctx, look); err != nil {
			return err
		}
		d, err := look.next(ctx)
		if err != nil {
			return err
		}
		if d == nil {
			break
		}
		if err := r.one(ctx, look, d, read(d, r.queue, r.store.prefix)); err != nil {
			return err
		}
	}
	if r.flights.group.Wait(); r.isCanary() && len(r.canary) > 0 {
		return r.watch(ctx, look)
	}
	return nil
}

// isCanary reports whether the letters that are sent now are watched.
func (r *redrive) isCanary() bool { return r.options.Canary > 0 && !r.watched && !r.dryRun }

// canarySent reports whether the whole canary was sent: letters that stay are no part of it. It waits for the letters in flight if they
// decide.
func (r *redrive) canarySent() bool {
	sent := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.canary)
	}
	if sent()+int(r.flights.flying.Load()) < r.options.Canary {
		return false
	}
	r.flights.group.Wait()
	return sent() >= r.options.Canary
}

// limitReached reports whether no further letter may be sent. It waits for the letters in flight if they decide.
func (r *redrive) limitReached() bool {
	if r.limit == 0 || r.sent()+int(r.flights.flying.Load()) < r.limit {
		return false
	}
	r.flights.group.Wait()
	return r.sent() >= r.limit
}

// sent is how many letters were sent and acknowledged, whether the broker has read that or not.
func (r *run) sent() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.summary.Done + r.maybe
}

func (r *redrive) enterOnce(phase letters.Phase) {
	if r.phase != phase {
		r.enter(phase, time.Time{})
	}
}

// one sends a letter, or keeps it.
func (r *redrive) one(ctx context.Context, look *look, d *amqp091.Delivery, l *letters.Letter) error {
	if r.isOurs(l) { // it has died again
		look.further()
		return look.keep(ctx, d)
	}
	if !r.filter.Match(l, time.Now()) {
		r.change(func() { r.summary.Other++ })
		return look.keep(ctx, d)
	}
	keep := func() error {
		r.change(func() { r.summary.Kept++ })
		return look.keep(ctx, d)
	}
	target, to := r.destination(d, l)
	if err, gone := r.isGone(look, target, to); gone {
		return errors.Join(err, keep())
	}
	if r.dryRun {
		r.change(func() { r.summary.Done++ })
		return look.keep(ctx, d)
	}
	publishing, err := r.publishing(d, l, to)
	if err != nil {
		r.stay(err)
		return keep()
	}
	if r.options.Edit != nil {
		if publishing.Body, err = r.options.Edit(l); err != nil {
			return errors.Join(fmt.Errorf("letter %q was not changed and stays: %w", l.ID, err), keep())
		}
	}
	if err := r.pace(ctx); err != nil {
		return errors.Join(err, keep())
	}
	err = r.flights.run(ctx, len(publishing.Body), func() {
		if err := r.fly(ctx, look, d, l, target, to, publishing); err != nil {
			select {
			case r.failed <- err:
			default:
			}
		}
	})
	if err != nil {
		return errors.Join(err, keep())
	}
	return nil
}
