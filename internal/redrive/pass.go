package redrive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// batchLetters and batchBytes are how many letters a discard exports before it removes them, and the size of
	// their bodies.
	batchLetters = 256
	batchBytes   = 8 << 20
)

// Pass goes through the letters of a source.
func (r *Run) Pass(ctx context.Context, s Source) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := r.all(ctx, s)
	if err != nil {
		cancel(err) // letters that wait for the broker to come back stay
	}
	r.flights.Wait()
	select {
	case err = <-r.failed: // it is the reason for the error of the other letters
	default:
	}
	if err == nil {
		err = r.settle(s)
	}
	if err == nil && (r.Options.Canary > 0 || r.Options.MaxRedead > 0) && !r.Options.DryRun {
		err = r.look(ctx, s, 1)
	}
	return err
}

// settle waits until the removals so far are certain.
func (r *Run) settle(s Source) error {
	if err := s.Settle(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure = 0
	return nil
}

// Land waits until no letter is in flight.
func (r *Run) Land() { r.flights.Wait() }

// all decides about the letters until there are no more, the limit is reached, or one has failed.
func (r *Run) all(ctx context.Context, s Source) error {
	removal := batch{run: r}
	for !r.limitReached(removal.letters()) && len(r.failed) == 0 {
		if err := r.watchCanary(ctx, s, r.Options.Canary); err != nil {
			return err
		}
		if err := r.check(ctx, s); err != nil {
			return err
		}
		item, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if item == nil {
			break
		}
		if r.discard != nil {
			err = r.remove(ctx, &removal, item)
		} else {
			err = r.send(ctx, s, item)
		}
		if err != nil {
			return err
		}
	}
	if err := removal.flush(ctx); err != nil {
		return err
	}
	r.flights.Wait()
	return r.watchCanary(ctx, s, 1)
}

// limitReached reports whether no further letter may be sent. It waits for the letters in flight if they decide.
func (r *Run) limitReached(batched int) bool {
	limit := r.Options.Limit
	if limit == 0 || r.Removed()+batched+int(r.flights.flying.Load()) < limit {
		return false
	}
	r.flights.Wait()
	return r.Removed()+batched >= limit
}

// selects reports whether the filter selects a letter. A letter that it does not select, or that a dry run counts, is
// kept.
func (r *Run) selects(ctx context.Context, item Item) (bool, error) {
	if !r.Options.Filter.Match(item.Letter(), time.Now()) {
		r.Change(func(s *letters.Summary) { s.Other++ })
		return false, item.Keep(ctx)
	}
	if r.Options.DryRun && r.discard != nil {
		r.Change(func(s *letters.Summary) { s.Done++ })
		return false, item.Keep(ctx)
	}
	return true, nil
}

// send sends a letter, or keeps it.
func (r *Run) send(ctx context.Context, s Source, item Item) error {
	if selected, err := r.selects(ctx, item); err != nil || !selected {
		return err
	}
	keep := func(err error) error {
		r.Change(func(s *letters.Summary) { s.Kept++ })
		return errors.Join(err, item.Keep(ctx))
	}
	if found, err := r.find(ctx, item); err != nil || !found {
		return keep(err)
	}
	if r.Options.DryRun {
		r.Change(func(s *letters.Summary) { s.Done++ })
		return item.Keep(ctx)
	}
	if err := r.awaitFirst(ctx, s, item.Target()); err != nil {
		return keep(err)
	}
	if err := r.pace(ctx); err != nil {
		return keep(err)
	}
	if err := r.flights.Run(ctx, len(item.Letter().Payload), func() { r.fly(ctx, item) }); err != nil {
		return keep(err)
	}
	return nil
}

// find reports whether the target of a letter exists. It looks once for each target.
func (r *Run) find(ctx context.Context, item Item) (bool, error) {
	target := item.Target()
	r.mu.Lock()
	err, known := r.gone[target]
	r.mu.Unlock()
	if !known {
		if err = item.Find(ctx); err != nil && !errors.Is(err, letters.ErrNoTarget) {
			return false, err
		}
		r.mu.Lock()
		r.gone[target] = err
		r.mu.Unlock()
	}
	return err == nil, nil
}

// fly sends a letter and counts what became of it.
func (r *Run) fly(ctx context.Context, item Item) {
	doubtful, err := item.Send(ctx)
	r.Change(func(s *letters.Summary) {
		s.Doubtful += doubtful
		if err != nil {
			s.Kept++
			return
		}
		s.Done++
		r.unsure++
		if r.isCanary() {
			r.canary = append(r.canary, item.Letter())
		}
	})
	var stays *Stays
	switch {
	case err == nil || ctx.Err() != nil: // the error of the pass is the reason
	case errors.Is(err, letters.ErrNoTarget):
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gone[item.Target()] = err
	case errors.As(err, &stays):
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.stays == nil {
			r.stays = err
		}
	default:
		select {
		case r.failed <- err:
		default:
		}
	}
}

// pace waits until the rate allows another letter.
func (r *Run) pace(ctx context.Context) error {
	if r.Options.Rate == 0 {
		return nil
	}
	now := time.Now()
	if r.next.Before(now) {
		r.next = now
	}
	wait := r.next.Sub(now)
	r.next = r.next.Add(time.Duration(float64(time.Second) / r.Options.Rate))
	return pauses.Sleep(ctx, wait)
}

// remove puts a letter into a batch of a discard.
func (r *Run) remove(ctx context.Context, b *batch, item Item) error {
	if selected, err := r.selects(ctx, item); err != nil || !selected {
		return err
	}
	if r.discard.Export != nil {
		var err error
		if b.text, err = item.AppendLine(b.text); err != nil {
			return fmt.Errorf("cannot export letter %q, so it stays: %w", item.Letter().ID, err)
		}
	}
	b.items, b.size = append(b.items, item), b.size+len(item.Letter().Payload)
	if len(b.items) < batchLetters && b.size < batchBytes {
		return nil
	}
	return b.flush(ctx)
}

// A batch is letters that are exported together before they are removed.
type batch struct {
	run   *Run
	items []Item
	text  []byte // lines of JSON
	size  int    // bytes of the bodies
}

func (b *batch) letters() int { return len(b.items) }

func (b *batch) flush(ctx context.Context) error {
	if len(b.items) == 0 {
		return nil
	}
	if to := b.run.discard.Export; to != nil {
		if _, err := to.Write(b.text); err != nil {
			return fmt.Errorf("cannot export letters before they are removed, so they stay: %w", err)
		}
		if file, ok := to.(interface{ Sync() error }); ok {
			if err := file.Sync(); err != nil {
				return fmt.Errorf("cannot write exported letters to the disk, so they stay: %w", err)
			}
		}
	}
	for _, item := range b.items {
		if err := item.Remove(ctx); err != nil {
			b.run.Change(func(s *letters.Summary) { s.Kept++ })
			return err
		}
		b.run.Change(func(s *letters.Summary) {
			s.Done++
			b.run.unsure++
		})
	}
	b.items, b.text, b.size = b.items[:0], b.text[:0], 0
	return nil
}
