package deadletter

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/headers"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

const (
	// mostInFlight is how many letters are sent and not yet confirmed.
	mostInFlight = 128
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

	places  chan struct{} // of letters in flight
	flights sync.WaitGroup
	failed  chan error       // the first error that ends the redrive
	next    time.Time        // when the next letter may be sent, with a Rate
	gone    map[string]error // by target: nil for those that are there
	stays   error            // the first error of a letter that stays, while the redrive goes on
	canary  []*letters.Letter
	watched bool // the canary has lived
	foreign int  // letters that arrived and are not of this redrive
	looked  time.Time
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
	options.By = cmp.Or(options.By, whoami())
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
		r.sender = sender
	}
	summary, err := r.each(ctx, true, r.session)
	return summary, errors.Join(append([]error{err, r.stays}, r.goneErrors()...)...)
}

func whoami() string {
	name := "unknown"
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	host, _ := os.Hostname()
	return name + "@" + host
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
	r.places = make(chan struct{}, mostInFlight)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := r.all(ctx, look)
	if err != nil {
		cancel(err) // letters that wait for the broker to come back stay
	}
	r.flights.Wait()
	select {
	case failed := <-r.failed:
		if err == nil || errors.Is(err, errLost) {
			err = failed
		}
	default:
	}
	if err == nil {
		err = r.sure(look, true)
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
			if len(r.canary) == r.options.Canary {
				if err := r.watch(ctx, look); err != nil {
					return err
				}
			}
		}
		if err := r.sure(look, false); err != nil {
			return err
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
	if r.isCanary() && len(r.canary) > 0 {
		return r.watch(ctx, look)
	}
	return nil
}

// isCanary reports whether the letters that are sent now are watched.
func (r *redrive) isCanary() bool { return r.options.Canary > 0 && !r.watched && !r.dryRun }

// limitReached reports whether no further letter may be sent. It waits for the letters in flight if they decide.
func (r *redrive) limitReached() bool {
	if r.limit == 0 || r.done()+len(r.places) < r.limit {
		return false
	}
	r.flights.Wait()
	return r.done() >= r.limit
}

func (r *run) done() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.summary.Done
}

func (r *redrive) enterOnce(phase letters.Phase) {
	if r.phase != phase {
		r.enter(phase, time.Time{})
	}
}

// one sends a letter, or keeps it.
func (r *redrive) one(ctx context.Context, look *look, d *amqp091.Delivery, l *letters.Letter) error {
	if !r.filter.Match(l, time.Now()) || r.isOurs(l) {
		r.change(func() { r.summary.Other++ })
		return look.keep(ctx, d)
	}
	if r.dryRun {
		r.change(func() { r.summary.Done++ })
		return look.keep(ctx, d)
	}
	keep := func() error {
		r.change(func() { r.summary.Kept++ })
		return look.keep(ctx, d)
	}
	target := cmp.Or(l.Target, r.options.To)
	if r.through != "" {
		target = targetOfOrphan(d.RoutingKey, r.queue)
	}
	if err, known := r.isGone(look, target); known {
		return errors.Join(err, keep())
	}
	entry := middleware.Redrive{
		Run: r.id, At: time.Now(), By: r.options.By, Note: r.options.Note,
		Failures: l.Record.Failures, DeadReason: l.Record.DeadReason, Reason: l.Record.Reason,
	}
	to, publishing := destination{key: target}, amqp091.Publishing{}
	if r.through != "" {
		to, publishing = destination{exchange: r.through, key: d.RoutingKey}, same(d)
	} else {
		publishing = fresh(d, l, entry, r.user)
		if reason := headers.RawReason(d.Headers); reason != "" && l.Kind == letters.Library {
			var err error
			if publishing, err = r.store.marshal(l, publishing, reason); err != nil {
				r.stay(err)
				return keep()
			}
		}
	}
	if r.options.Edit != nil {
		body, err := r.options.Edit(l)
		if err != nil {
			return errors.Join(fmt.Errorf("letter %q was not changed and stays: %w", l.ID, err), keep())
		}
		publishing.Body = body
	}
	if err := r.pace(ctx); err != nil {
		return errors.Join(err, keep())
	}
	select {
	case r.places <- struct{}{}:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), keep())
	}
	if r.isCanary() {
		r.canary = append(r.canary, l)
	}
	r.flights.Add(1)
	go func() {
		defer func() { <-r.places; r.flights.Done() }()
		if err := r.fly(ctx, look, d, target, to, publishing); err != nil {
			select {
			case r.failed <- err:
			default:
			}
		}
	}()
	return nil
}

// fly sends a letter and removes it. It returns an error that ends the redrive.
func (r *redrive) fly(ctx context.Context, look *look, d *amqp091.Delivery, target string, to destination, p amqp091.Publishing) error {
	for {
		err := r.sender.send(ctx, to, p)
		if err == nil {
			if err = r.acknowledge(look, d); err != nil {
				r.change(func() { r.summary.Doubtful++ }) // the broker gives it back
			}
			return err
		}
		if isDoubtful(err) {
			r.change(func() { r.summary.Doubtful++ })
			if ctx.Err() == nil {
				continue // the letter is still here
			}
		}
		r.change(func() { r.summary.Kept++ })
		var failed *publisher.PublishError
		switch {
		case ctx.Err() != nil:
			return nil // the error of the session says why
		case errors.Is(err, publisher.ErrUnroutable):
			r.mu.Lock()
			r.gone[target] = fmt.Errorf("%w: the queue %q does not exist, so its letters stay in %q; start its app, or name another queue", letters.ErrNoTarget, target, r.queue)
			r.mu.Unlock()
			return nil
		case refusal.IsCode(err, amqp091.AccessRefused):
			exchange := cmp.Or(to.exchange, "amq.default")
			return fmt.Errorf("the letter stays: the user needs the permission to write to the exchange %q: %w", exchange, err)
		case errors.As(err, &failed) && failed.Refused(): // because of this letter
			r.stay(fmt.Errorf("a letter cannot be sent, and stays: %w", err))
			return nil
		case errors.As(err, &failed) && failed.Rejected():
			return fmt.Errorf("the work queue %q refuses letters, for example because it is full; this letter and those behind it stay: %w", target, err)
		}
		return fmt.Errorf("a letter cannot be sent, and stays: %w", err)
	}
}

// stay keeps the first error of letters that stay.
func (r *redrive) stay(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stays == nil {
		r.stays = err
	}
}

// isGone reports whether a letter with this target stays. With an error the redrive ends.
func (r *redrive) isGone(look *look, target string) (fatal error, gone bool) {
	r.mu.Lock()
	err, known := r.gone[target]
	r.mu.Unlock()
	if known {
		return nil, err != nil
	}
	switch {
	case target == "":
		err = fmt.Errorf("%w: letters in %q do not say which work queue they are from; name it with Redrive.To", letters.ErrNoTarget, r.queue)
	case r.through != "": // it leads to the orphans when the queue is gone
		_, refused := look.connection.Channel(func(channel *amqp091.Channel) error {
			defer channel.Close()
			_, err := channel.QueueDeclarePassive(target, true, false, false, false, nil)
			return err
		})
		if refusal.IsCode(refused, amqp091.NotFound) {
			err = fmt.Errorf("%w: the queue %q does not exist, so its messages stay in %q; start its app", letters.ErrNoTarget, target, r.queue)
		} else if refused != nil {
			return explain("find the work queue", target, refused), true
		}
	}
	r.mu.Lock()
	r.gone[target] = err
	r.mu.Unlock()
	return nil, err != nil
}

func (r *redrive) goneErrors() (all []error) {
	for _, err := range r.gone {
		if err != nil {
			all = append(all, err)
		}
	}
	slices.SortFunc(all, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return all
}

// pace waits until the rate allows another letter.
func (r *redrive) pace(ctx context.Context) error {
	if r.options.Rate == 0 {
		return nil
	}
	now := time.Now()
	if r.next.Before(now) {
		r.next = now
	}
	wait := r.next.Sub(now)
	r.next = r.next.Add(time.Duration(float64(time.Second) / r.options.Rate))
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
