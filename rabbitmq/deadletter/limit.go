package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/argument"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A limit is how often a queue takes a letter back. The next time it drops the letter, or dead-letters it.
type limit int64

const (
	unknown limit = -1
	never   limit = math.MaxInt64

	// defaultLimit is that of a quorum queue from RabbitMQ 4.0 on, unless it has another one.
	defaultLimit limit = 20
	// lowestLimit is the lowest one of a queue that is looked at without Config.AnyLimit.
	lowestLimit limit = 5
	// limitMargin is how many deliveries before the limit a letter is replaced by a copy. Each lost connection takes
	// one of them.
	limitMargin limit = lowestLimit - 1
	// farLimit is a limit that is not reached by hand. Queues of the library have a million.
	farLimit limit = 100_000

	// stateWithin is how long the management API may take until it states the policies of a queue, and statePause is
	// how often it is asked.
	stateWithin = 20 * time.Second
	statePause  = time.Second
)

// limitOf returns the delivery limit of a quorum queue from its argument and that of its policies. Either is nil
// where it is not set. known is false where the policies are not known; then the argument decides only where no
// policy can change the answer.
func limitOf(version string, argument, policy *int64, known bool) limit {
	old := isOld(version)
	lowest := argument
	if policy != nil {
		switch {
		case lowest == nil:
			lowest = policy
		case !old && min(*policy, *argument) < 0: // from 4.0 on a limit takes the place of no limit
			n := max(*policy, *argument)
			lowest = &n
		default:
			n := min(*policy, *argument)
			lowest = &n
		}
	}
	switch {
	case lowest != nil && *lowest < 0 && old:
		return 0 // -1 is below the first count
	case !known && (lowest == nil || limit(*lowest) >= lowestLimit || *lowest < 0):
		return unknown
	case lowest != nil && *lowest >= 0:
		return limit(*lowest)
	case lowest == nil && !old:
		return defaultLimit
	}
	return never
}

// isOld reports whether a broker is older than 4.0: a quorum queue without a limit has none there, and -1 means no
// delivery at all.
func isOld(version string) bool { return strings.HasPrefix(version, "3.") }

// replacedAt returns the count of deliveries from which on a letter is replaced by a copy. An unknown limit can be
// any but 0: its letters are given back once.
func (l limit) replacedAt() int64 {
	if l == unknown {
		l = lowestLimit
	}
	return int64(max(l-limitMargin, min(l, 1)))
}

// far reports whether looks do not reach the limit.
func (l limit) far() bool { return l >= farLimit }

// barren returns how often in a row a connection may be lost before a letter was removed.
func (l limit) barren() int {
	if l.far() {
		return mostBarren
	}
	return int(limitMargin)
}

// findLimit finds the delivery limit of the queue, and returns an error where a look could cost letters. The
// management API states the policies of a queue only some seconds after it was declared: findLimit waits for that
// where they decide.
func (l *look) findLimit(ctx context.Context) error {
	for until := time.Now().Add(stateWithin); ; {
		young, err := l.askLimit(ctx)
		if !young || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(statePause):
		}
	}
}

// askLimit asks once. young: the queue is refused, and its policies are still missing.
func (l *look) askLimit(ctx context.Context) (young bool, err error) {
	s, version := l.store, l.connection.Version()
	if _, _, isTier := s.prefix.TierOf(l.queue); isTier {
		l.limit = never // beyond the limit of a tier the broker sends a message back to its work queue
		return false, nil
	}
	set, err := s.settings(ctx, l.connection, l.queue)
	if err != nil {
		return false, err
	}
	if set.AutoDelete {
		return false, fmt.Errorf("the queue %q is an auto-delete queue: RabbitMQ deletes it, with its letters, "+
			"when a "+
			"consumer ends that has looked at it; bind a queue that stays in its place", l.queue)
	}
	if set.Type != "" && set.Type != string(topology.Quorum) {
		l.limit = never
		return false, nil
	}
	own, policy := number(set.Arguments, argument.DeliveryLimit), (*int64)(nil)
	if set.Policy != nil {
		policy = number(*set.Policy, "delivery-limit")
	}
	l.limit = limitOf(version, own, policy, set.Policy != nil)
	if l.limit != unknown && l.limit < lowestLimit && !s.config.AnyLimit {
		return false, fmt.Errorf("the queue %q is not read: %s, and RabbitMQ %s drops a letter that is given back "+
			"more "+
			"often, or dead-letters it. The limit must be at least %d. Raise it where a policy sets it. An "+
			"argument of a queue "+
			"cannot be changed: redrive the letters, or export and discard them. To do that at the risk of losing "+
			"some, set "+
			"Config.AnyLimit (wmretry: --any-limit)", l.queue, limitText(own, policy), version, lowestLimit)
	}
	if l.limit.far() || !workqueue.CountsRequeues(version) || s.config.AnyLimit {
		return false, nil
	}
	err = l.mayReplace(ctx)
	return err != nil && set.Type != "" && set.Policy == nil && s.config.Management != "", err
}

func (l limit) String() string {
	switch l {
	case unknown:
		return "its delivery limit is not known"
	case never:
		return "it has no delivery limit"
	}
	return fmt.Sprintf("its delivery limit is %d", int64(l))
}

func limitText(own, policy *int64) string {
	text := ""
	if own != nil {
		text = fmt.Sprintf("its %s is %d", argument.DeliveryLimit, *own)
	}
	if policy == nil {
		return text
	}
	if text != "" {
		text += ", "
	}
	return text + fmt.Sprintf("the delivery-limit of its policy is %d", *policy)
}

func number(arguments map[string]any, key string) *int64 {
	n, is := arguments[key].(int64)
	if !is {
		return nil
	}
	return &n
}

// settings returns what is known of a queue. Without the management API that is nothing, but before RabbitMQ 4.0 its
// arguments, where the user may declare it: with a limit of -1 the first look would drop all letters.
func (s *Store) settings(
	ctx context.Context, connection *wire.Connection, queue string,
) (management.Settings, error) {
	var cause error
	if s.config.Management != "" {
		client, err := s.managementClient()
		if err != nil {
			return management.Settings{}, err
		}
		set, err := client.Settings(ctx, queue)
		if err == nil {
			return set, nil
		}
		cause = err
	}
	var set management.Settings
	if isOld(connection.Version()) {
		have, _, err := workqueue.Arguments(workqueue.Broker{Channel: connection.Client.Channel}, topology.Queue{
			Name: queue, Durable: true, Arguments: amqp091.Table{ // those of the library's own
				argument.QueueType: string(topology.Quorum), argument.DeliveryLimit: int64(1_000_000),
				argument.QueueLeaderLocator: argument.Balanced,
			},
		})
		if err == nil {
			set.Arguments = management.Arguments(have)
			set.Type, _ = have[argument.QueueType].(string)
		} else if cause == nil {
			cause = err
		}
	}
	if cause != nil {
		s.logger.Info("The delivery limit of a queue is not known", watermill.LogFields{
			"queue": queue, "cause": cause.Error(),
		})
	}
	return set, nil
}

// mayReplace returns an error where letters cannot be replaced by copies. It asks before the first letter is
// delivered, because that counts.
func (l *look) mayReplace(ctx context.Context) error {
	const instead = "Or set Config.Management (wmretry: --management), if the queue has a limit that is never " +
		"reached. " +
		"To read the letters at the risk of losing some, set Config.AnyLimit (wmretry: --any-limit)"
	to, err := l.tryCopy(ctx)
	switch version := l.connection.Version(); {
	case refusal.IsCode(err, amqp091.AccessRefused):
		return fmt.Errorf("the queue %q is not read: %v, RabbitMQ %s counts each look, and the user may not "+
			"replace a "+
			"letter by a copy. Give the user the permission to write to the exchange %q. %s: %w",
			l.queue, l.limit, version, cmp.Or(to.exchange, "amq.default"), instead, err)
	case errors.Is(err, publish.ErrBlocked):
		return fmt.Errorf("the queue %q is not read: %v, RabbitMQ %s counts each look, and it blocks publishers "+
			"because of "+
			"a memory or disk alarm, so no letter can be replaced by a copy. Wait until the alarm has ended. %s: %w",
			l.queue, l.limit, version, instead, err)
	}
	return err
}

// tryCopy publishes a copy, and takes it back: the broker checks the permission when it gets a message, and a
// transaction that is rolled back publishes none. It returns publish.ErrBlocked in an alarm of the broker.
func (l *look) tryCopy(ctx context.Context) (to destination, err error) {
	// A connection of its own: a broker that blocks publishers would block the acknowledgements, too. Until its alarm
	// ends the broker answers nothing.
	connection, err := l.store.dial.Connect(ctx, connectionName)
	if err != nil {
		return to, notConnected(err)
	}
	defer connection.Close()
	go connection.WatchClosed()
	go connection.WatchBlocked(func(b amqp091.Blocking) {
		if b.Active {
			_ = connection.Socket.Close()
		}
	})
	defer context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })()
	for _, to = range l.copiesTo() {
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

// copiesTo returns where copies of the letters go: the first one that exists. See sender.put.
func (l *look) copiesTo() []destination {
	work, prefix := naming.WorkQueueOf(l.queue), l.store.prefix
	to := []destination{{key: l.queue}}
	switch {
	case l.queue == prefix.Orphans():
		to = []destination{{prefix.Orphans(), l.queue}}
	case l.queue != work:
		to = append([]destination{{prefix.RetryExchange(), naming.DeadKey(work)}}, to...)
	}
	return to
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
		l.stays = fmt.Errorf("letter %q in %q was delivered %d times, and cannot be replaced by a copy, so it "+
			"stays. Do not "+
			"look at the queue again before this is repaired: RabbitMQ drops the letter at the delivery limit of "+
			"the queue: %w",
			read(d, l.queue, l.store.prefix).ID, l.queue, redelivery.Failed(d.Headers), err)
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
		if err := l.keep(ctx, l.near[tag]); err != nil {
			failed = err
		}
	}
	if err := l.replace(ctx); err != nil {
		failed = err
	}
	l.near = nil
	return failed
}
