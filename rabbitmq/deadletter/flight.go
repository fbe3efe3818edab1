package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// flights bounds the letters that are sent and not yet confirmed: in number and, by their places, in bytes.
type flights struct {
	places chan struct{}
	flying atomic.Int64
	group  sync.WaitGroup
}

func newFlights() *flights { return &flights{places: make(chan struct{}, mostInFlight)} }

// run calls send in a goroutine when there is room for a body of this size. It returns the error of a context that ends
// before.
func (f *flights) run(ctx context.Context, size int, send func()) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	places := min(1+size/placeSize, mostInFlight)
	for taken := range places {
		select {
		case f.places <- struct{}{}:
		case <-ctx.Done():
			f.leave(taken)
			return context.Cause(ctx)
		}
	}
	f.flying.Add(1)
	f.group.Go(func() {
		defer func() { f.flying.Add(-1); f.leave(places) }()
		send()
	})
	return nil
}

func (f *flights) leave(places int) {
	for range places {
		<-f.places
	}
}

// destination returns the work queue of a letter, and where the letter is sent to reach it.
func (r *redrive) destination(d *amqp091.Delivery, l *letters.Letter) (target string, to destination) {
	switch {
	case r.options.To != "":
		return r.options.To, destination{key: r.options.To}
	case r.through != "":
		return targetOfOrphan(d.RoutingKey, r.queue), destination{r.through, d.RoutingKey}
	}
	return l.Target, destination{key: l.Target}
}

// publishing returns what is sent: through an exchange the message as it is, and else without its record.
func (r *redrive) publishing(d *amqp091.Delivery, l *letters.Letter, to destination) (amqp091.Publishing, error) {
	if to.exchange != "" {
		return same(d), nil
	}
	entry := retry.Redrive{Run: r.id, At: time.Now(), By: r.options.By, Note: r.options.Note}
	p := fresh(d, l, r.store.prefix, entry, r.user)
	if reason := headers.RawReason(d.Headers); reason != "" && l.Kind == letters.Library {
		return r.store.marshal(l, p, reason)
	}
	return p, nil
}

// fly sends a letter and removes it. It returns an error that ends the redrive.
func (r *redrive) fly(
	ctx context.Context, look *look, d *amqp091.Delivery, l *letters.Letter, target string, to destination, p amqp091.Publishing,
) error {
	for {
		err := r.sender.send(ctx, to, p)
		if err == nil {
			if err = r.acknowledge(look, d); err != nil {
				r.change(func() { r.summary.Doubtful++ }) // the broker gives it back
			} else if r.isCanary() {
				r.mu.Lock()
				r.canary = append(r.canary, l)
				r.mu.Unlock()
			}
			return err
		}
		if isDoubtful(err) {
			r.change(func() { r.summary.Doubtful++ })
			if ctx.Err() == nil && !isUnconfirmed(err) { // each further try would be another duplicate
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
		case isUnconfirmed(err):
			return fmt.Errorf("the work queue %q confirms no letter within %v, for example because it is a quorum queue without a majority; letters in "+
				"flight stay, and may be there as well; redrive again when it confirms: %w", target, confirmTimeout, err)
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
func (r *redrive) isGone(look *look, target string, to destination) (fatal error, gone bool) {
	r.mu.Lock()
	err, known := r.gone[target]
	r.mu.Unlock()
	if known {
		return nil, err != nil
	}
	switch {
	case target == "":
		err = fmt.Errorf("%w: letters in %q do not say which work queue they are from; name it with Redrive.To", letters.ErrNoTarget, r.queue)
	case to == destination{key: r.queue}:
		err = fmt.Errorf("%w: %q is the queue of the letters itself; name another one with Redrive.To", letters.ErrNoTarget, target)
	case to.exchange != "" || r.dryRun: // an exchange leads to the orphans when the queue is gone
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
