package deadletter

import (
	"context"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/letters"
)

// discardBatch is how many letters are exported before they are removed.
const discardBatch = 256

// discardBytes is the size of their bodies at which fewer are exported.
const discardBytes = 8 << 20

// Discard implements letters.Store.
func (s *Store) Discard(ctx context.Context, queue string, options letters.Discard) (letters.Summary, error) {
	if err := options.Validate(); err != nil {
		return letters.Summary{}, err
	}
	r := s.newRun(queue, options.Filter, options.Limit, options.DryRun, options.Progress)
	return r.each(ctx, true, func(ctx context.Context, look *look) error { return r.discard(ctx, look, options) })
}

func (r *run) discard(ctx context.Context, look *look, options letters.Discard) error {
	var batch []*amqp091.Delivery
	var text []byte
	size := 0
	flush := func() error {
		if options.Export != nil && len(batch) > 0 {
			if _, err := options.Export.Write(text); err != nil {
				return fmt.Errorf("cannot export letters before they are removed, so they stay: %w", err)
			}
			if file, ok := options.Export.(interface{ Sync() error }); ok {
				if err := file.Sync(); err != nil {
					return fmt.Errorf("cannot write exported letters to the disk, so they stay: %w", err)
				}
			}
		}
		for _, d := range batch {
			if err := r.acknowledge(look, d); err != nil {
				return err
			}
		}
		batch, text, size = batch[:0], text[:0], 0
		return nil
	}
	for r.limit == 0 || r.sent()+len(batch) < r.limit {
		d, err := look.next(ctx)
		if err != nil {
			return err
		}
		if d == nil {
			break
		}
		l := read(d, r.queue, r.store.prefix)
		switch {
		case !r.filter.Match(l, time.Now()):
			r.change(func() { r.summary.Other++ })
			err = look.keep(ctx, d)
		case r.dryRun:
			r.change(func() { r.summary.Done++ })
			err = look.keep(ctx, d)
		default:
			if options.Export != nil {
				if text, err = appendLine(text, d, l); err != nil {
					return fmt.Errorf("cannot export letter %q, so it stays: %w", l.ID, err)
				}
			}
			size += len(d.Body)
			if batch = append(batch, d); len(batch) == discardBatch || size >= discardBytes {
				err = flush()
			}
		}
		if err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	return r.sure(look)
}
