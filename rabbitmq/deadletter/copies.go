package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// Letters near the delivery limit of their queue are replaced by confirmed copies at its end, whose count begins anew.

// mayReplace returns an error where letters cannot be replaced by copies. It asks before the first letter is
// delivered, because that counts.
func (l *look) mayReplace(ctx context.Context) error {
	to, err := l.tryCopy(ctx)
	var why, do string
	switch {
	case refusal.IsCode(err, amqp091.AccessRefused):
		why = "the user may not replace a letter by a copy"
		do = fmt.Sprintf("Give the user the permission to write to the exchange %q", cmp.Or(to.exchange, "amq.default"))
	case errors.Is(err, publish.ErrBlocked):
		why = "it blocks publishers because of a memory or disk alarm, so no letter can be replaced by a copy"
		do = "Wait until the alarm has ended"
	default:
		return err
	}
	return fmt.Errorf("the queue %q is not read: %v, RabbitMQ %s counts each look, and %s. %s. Or set "+
		"Config.Management (wmretry: --management), for a user with the tag management, if the queue has a limit that is "+
		"never reached. To read the letters at the risk of losing some, set Config.AnyLimit (wmretry: --any-limit): %w",
		l.queue, l.limit, l.connection.Version(), why, do, err)
}

// tryCopy publishes a copy, and takes it back: the broker checks the permission when it gets a message, and a
// transaction that is rolled back publishes none. It returns publish.ErrBlocked in an alarm of the broker.
func (l *look) tryCopy(ctx context.Context) (to destination, err error) {
	// A connection of its own: a broker that blocks publishers would block the acknowledgements, too. Until its alarm
	// ends the broker answers nothing.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connection, err := l.store.dial.Connect(ctx, connectionName, func(b amqp091.Blocking) {
		if b.Active {
			cancel()
		}
	})
	if err != nil {
		return to, notConnected(err)
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })()
	copied := line{Queue: l.queue, Exchange: l.store.prefix.RetryExchange(),
		RoutingKey: naming.DeadKey(naming.WorkQueueOf(l.queue))}
	for _, to = range copied.destinations(l.store.prefix) {
		_, err = connection.Channel(func(channel *amqp091.Channel) error {
			closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
			err := channel.Tx()
			if err == nil {
				err = channel.PublishWithContext(ctx, to.exchange, to.key, false, false, amqp091.Publishing{})
			}
			if err == nil {
				err = channel.TxRollback()
			}
			if errors.Is(err, amqp091.ErrClosed) { // the answer to the message has come before
				if refused := <-closed; refused != nil {
					err = refused
				}
			}
			return err
		})
		switch {
		case err == nil || refusal.IsCode(err, amqp091.AccessRefused):
			return to, err
		case connection.Blocked.Load():
			return to, publish.ErrBlocked
		case ctx.Err() != nil:
			return to, context.Cause(ctx)
		case !refusal.IsCode(err, amqp091.NotFound):
			return to, explain("replace letters in", l.queue, err)
		}
	}
	return to, nil
}

// note remembers a letter that is near the delivery limit until it is removed or has a copy. An ordered look does so
// with all letters behind it, too: then the copies have the order of the letters.
func (l *look) note(d *amqp091.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if (l.near == nil || !l.ordered) && redelivery.Failed(d.Headers) < l.limit.replacedAt() {
		return
	}
	if l.near == nil {
		l.near = map[uint64]*amqp091.Delivery{}
	}
	l.near[d.DeliveryTag] = d
}

// forget reports whether a letter was remembered, and forgets it.
func (l *look) forget(d *amqp091.Delivery) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, near := l.near[d.DeliveryTag]
	delete(l.near, d.DeliveryTag)
	return near
}

// keep leaves a letter in the queue. A copy at the end of the queue takes the place of one that is remembered.
func (l *look) keep(ctx context.Context, d *amqp091.Delivery) error {
	if !l.forget(d) {
		return nil
	}
	l.kept = append(l.kept, d)
	if l.keptSize += len(d.Body); len(l.kept) < mostInFlight && l.keptSize < mostFetched {
		return nil
	}
	return l.replace(ctx)
}

// replace publishes the copies of letters that are kept, in their order, and removes the letters. A letter that
// cannot be replaced stays, and the look goes on: see look.stays.
func (l *look) replace(ctx context.Context) error {
	kept := l.kept
	l.kept, l.keptSize = nil, 0
	if len(kept) == 0 {
		return nil
	}
	// The broker delivers another letter for each one that is removed, and at the end of the queue that is a copy, which
	// would lose its place.
	if err := l.cancel(); err != nil {
		return err
	}
	if l.copies == nil && l.store.config.AnyLimit { // it was not tried before
		if _, err := l.tryCopy(ctx); errors.Is(err, publish.ErrBlocked) {
			l.stay(kept[0], err)
			return nil
		}
	}
	if l.copies == nil {
		copies, err := l.store.newSender()
		if err != nil {
			return notConnected(err)
		}
		copies.copies = true
		l.copies = copies
	}
	lines := make([]line, len(kept))
	for i, d := range kept {
		lines[i] = line{l.queue, d.Exchange, d.RoutingKey, same(d)}
	}
	var lost error
	for i, err := range l.copies.putAll(ctx, l.store.prefix, lines) {
		if err == nil { // if the connection is lost before, the letter and its copy are there
			err = l.remove(kept[i])
		}
		if errors.Is(err, errLost) {
			lost = err
		} else if err != nil {
			l.stay(kept[i], err)
		}
	}
	return lost
}

// stay keeps the error of the first letter that stays without a copy.
func (l *look) stay(d *amqp091.Delivery, err error) {
	if l.stays == nil {
		l.stays = fmt.Errorf("letter %q in %q was delivered %d times, and cannot be replaced by a copy, so it stays. "+
			"Do not look at the queue again before this is repaired: RabbitMQ drops the letter at the delivery limit "+
			"of the queue: %w", read(d, l.queue, l.store.prefix).ID, l.queue, redelivery.Failed(d.Headers), err)
	}
}

// giveUp replaces the letters that are near the delivery limit and were not removed, whether they were looked at or
// not.
func (l *look) giveUp(ctx context.Context) error {
	for i := range l.fetched {
		l.note(&l.fetched[i])
	}
	l.fetched = nil
	var failed error
	for _, tag := range slices.Sorted(maps.Keys(l.near)) {
		failed = errors.Join(failed, l.keep(ctx, l.near[tag]))
	}
	l.near = nil
	return errors.Join(failed, l.replace(ctx))
}

// putAll publishes letters of one queue in their order, and returns the error of each. A letter that is larger than
// any that the broker has taken goes alone: where the broker refuses it, it closes the channel, and what is in flight
// on it is sent twice.
func (s *sender) putAll(ctx context.Context, prefix naming.Prefix, lines []line) []error {
	failed := make([]error, 0, len(lines))
	for rest := lines; len(rest) > 0; rest = lines[len(failed):] {
		n := slices.IndexFunc(rest, func(l line) bool { return len(l.Publishing.Body) > s.taken })
		if n < 0 {
			n = len(rest)
		}
		if n > 0 {
			failed = append(failed, s.putTogether(ctx, prefix, rest[:n])...)
			continue
		}
		err := s.put(ctx, prefix, rest[0])
		if err == nil {
			s.taken = max(s.taken, len(rest[0].Publishing.Body))
		}
		failed = append(failed, err)
	}
	return failed
}

// putTogether publishes letters in one call. It publishes again, one after the other, only those that were not
// confirmed, and not those whose confirm did not come in time.
func (s *sender) putTogether(ctx context.Context, prefix naming.Prefix, lines []line) []error {
	all := make([]publisher.Message, len(lines))
	var err error
	for i := 0; i < len(lines) && err == nil; i++ {
		all[i], err = s.message(ctx, lines[i].destination(prefix), lines[i].Publishing)
	}
	var failed []error
	if err == nil {
		failed, err = s.connection.Send(all...)
	}
	switch {
	case err != nil: // nothing was sent
		failed = slices.Repeat([]error{err}, len(lines))
	case failed == nil:
		failed = make([]error, len(lines))
	}
	for i, err := range failed {
		if err != nil && !isUnconfirmed(err) {
			failed[i] = s.put(ctx, prefix, lines[i])
		}
	}
	return failed
}
