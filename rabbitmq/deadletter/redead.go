package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/letters"
)

// isOurs reports whether a letter was sent by this redrive, and has died again.
func (r *redrive) isOurs(l *letters.Letter) bool {
	redrives := l.Redriven.Redrives
	return len(redrives) > 0 && redrives[len(redrives)-1].Run == r.id
}

// watch waits until the canary has had the time to die again, and returns letters.ErrRedead if one did.
func (r *redrive) watch(ctx context.Context, look *look) error {
	r.flights.group.Wait()
	if len(r.failed) > 0 {
		return nil
	}
	if err := r.sure(look); err != nil {
		return err
	}
	wait := r.options.CanaryWait
	if wait == 0 {
		wait = letters.Watch(r.canary)
	}
	if r.lives.IsZero() { // after a lost connection the rest is enough: the broker closes a channel that has letters for too long
		r.lives = time.Now().Add(wait)
	}
	r.enter(letters.Watching, r.lives)
	tick := time.NewTicker(min(redeadPause, max(wait/4, 10*time.Millisecond)))
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		over = time.Now().After(r.lives)
		arrived, err := look.arrived()
		if err != nil {
			return err
		}
		if arrived <= r.foreign || !over && arrived < 2*r.foreign {
			continue
		}
		if err := r.search(ctx, look); err != nil {
			return err
		}
		if r.summary.Redead > 0 {
			return fmt.Errorf("%w: %d of the canary of %d; repair the cause first, then redrive again", letters.ErrRedead, r.summary.Redead, len(r.canary))
		}
	}
	r.watched = true
	r.canary = nil
	r.looked = time.Now()
	r.enter(letters.Looking, time.Time{})
	return nil
}

// check returns letters.ErrRedead when more than the share of MaxRedead have died again. It looks once a second, and less
// often in a long queue.
func (r *redrive) check(ctx context.Context, look *look) error {
	if r.options.MaxRedead == 0 || r.dryRun || time.Since(r.looked) < max(redeadPause, 10*r.searched) {
		return nil
	}
	return r.count(ctx, look)
}

// count counts the letters that have died again, if there can be more of them than MaxRedead allows.
func (r *redrive) count(ctx context.Context, look *look) error {
	r.looked = time.Now()
	arrived, err := look.arrived()
	if err != nil {
		return err
	}
	if arrived <= r.foreign+r.summary.Redead || look.left > 0 && !r.options.Redead(r.copies(), arrived-r.foreign) {
		return nil
	}
	if err := r.search(ctx, look); err != nil {
		return err
	}
	r.searched, r.looked = time.Since(r.looked), time.Now()
	if sent := r.copies(); r.options.Redead(sent, r.summary.Redead) {
		return fmt.Errorf("%w: %d of %d, more than the share of %v; repair the cause first, then redrive again",
			letters.ErrRedead, r.summary.Redead, sent, r.options.MaxRedead)
	}
	return nil
}

// copies is how many copies there can be: those of letters in flight and the doubtful ones can have died again, too.
func (r *redrive) copies() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.summary.Done + r.summary.Doubtful + int(r.flights.flying.Load())
}

// search goes through what this redrive has not looked at, and counts the letters that have died again. Its own consumer
// may have fetched some of them. It does not go by their places: a letter that it replaces by a copy changes its place.
func (r *redrive) search(ctx context.Context, l *look) (err error) {
	behind, err := r.store.look(ctx, l.connection, r.queue, 0, -1, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, behind.close(ctx)) }()
	newer, redead := -max(l.total-l.received, 0), 0 // those that are to be looked at come, too
	ids := map[string]bool{}                        // a lost connection can leave a letter beside its copy
	see := func(d *amqp091.Delivery) {
		newer++
		if letter := read(d, r.queue, r.store.prefix); r.isOurs(letter) && (letter.ID == "" || !ids[letter.ID]) {
			ids[letter.ID] = true
			redead++
		}
	}
	for i := min(l.left, len(l.fetched)); i < len(l.fetched); i++ {
		see(&l.fetched[i])
	}
	for {
		d, err := behind.next(ctx)
		if err != nil {
			return err
		}
		if d == nil {
			break
		}
		see(d)
		if err := behind.keep(ctx, d); err != nil {
			return err
		}
	}
	if newer = max(newer, redead); r.orphans { // these have no record of a redrive
		redead = newer
	}
	r.foreign = newer - redead
	r.change(func() { r.summary.Redead = redead })
	return nil
}
