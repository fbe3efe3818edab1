package deadletter

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A limit is how often a queue takes a letter back. The next time it drops the letter, or dead-letters it.
type limit int64

const (
	unknown limit = -1
	never   limit = workqueue.NoLimit

	// lowestLimit is the lowest one of a queue that is looked at without Config.AnyLimit.
	lowestLimit limit = 5
	// limitMargin is how many deliveries before the limit a letter is replaced by a copy. Each lost connection takes
	// one of them.
	limitMargin limit = lowestLimit - 1

	// stateWithin is how long the management API may take until it states the policies of a queue, and statePause is
	// how often it is asked.
	stateWithin = 20 * time.Second
	statePause  = time.Second
)

// limitOf returns the delivery limit of a quorum queue from those that are set. known is false where the policies are
// not known; then the limit decides only where no policy can change the answer.
func limitOf(version string, known bool, set ...int64) limit {
	l := limit(workqueue.DeliveryLimit(version, set...))
	if !known && l >= lowestLimit {
		return unknown
	}
	return l
}

// replacedAt returns the count of deliveries from which on a letter is replaced by a copy. An unknown limit can be
// any but 0: its letters are given back once.
func (l limit) replacedAt() int64 {
	if l == unknown {
		l = lowestLimit
	}
	return int64(max(l-limitMargin, min(l, 1)))
}

// far reports whether looks do not reach the limit.
func (l limit) far() bool { return l >= workqueue.FarLimit }

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
		if err := pauses.Sleep(ctx, statePause); err != nil {
			return err
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
	set := l.settings(ctx)
	if set.AutoDelete {
		return false, fmt.Errorf("the queue %q is an auto-delete queue: RabbitMQ deletes it, with its letters, when "+
			"a consumer ends that has looked at it; bind a queue that stays in its place", l.queue)
	}
	if set.Type != "" && set.Type != string(topology.Quorum) {
		l.limit = never
		return false, nil
	}
	var limits []int64
	var texts []string
	if n, is := set.Arguments[queuearg.DeliveryLimit].(int64); is {
		limits, texts = append(limits, n), append(texts, fmt.Sprintf("its %s is %d", queuearg.DeliveryLimit, n))
	}
	if n, is := set.Effective["delivery-limit"].(int64); is {
		limits, texts = append(limits, n), append(texts, fmt.Sprintf("the delivery-limit of its policy is %d", n))
	}
	l.limit = limitOf(version, set.Effective != nil, limits...)
	if l.limit != unknown && l.limit < lowestLimit && !s.config.AnyLimit {
		return false, fmt.Errorf("the queue %q is not read: %s, and RabbitMQ %s drops a letter that is given back "+
			"more often, or dead-letters it. The limit must be at least %d. Raise it where a policy sets it. An "+
			"argument of a queue cannot be changed: redrive the letters, or export and discard them. To do that at "+
			"the risk of losing some, set Config.AnyLimit (wmretry: "+
			"--any-limit)", l.queue, strings.Join(texts, ", "), version, lowestLimit)
	}
	if l.limit.far() || !workqueue.CountsRequeues(version) || s.config.AnyLimit {
		return false, nil
	}
	err = l.mayReplace(ctx)
	return err != nil && set.Type != "" && set.Effective == nil && s.config.Management != "", err
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

// settings returns what is known of a queue. Without the management API that is nothing, but before RabbitMQ 4.0 its
// arguments, where the user may declare it: with a limit of -1 the first look would drop all letters.
func (l *look) settings(ctx context.Context) (set management.Queue) {
	var cause error
	if client, err := l.store.managementClient(); err == nil {
		if set, cause = client.Limits(ctx, l.queue); cause == nil {
			return set
		}
		set = management.Queue{}
	}
	if workqueue.Before4(l.connection.Version()) {
		idle := workqueue.NewIdle(l.connection)
		defer idle.Close()
		have, _, err := workqueue.Arguments(idle, topology.Queue{
			Name: l.queue, Durable: true, Arguments: amqp091.Table{ // those of the library's own
				queuearg.QueueType: string(topology.Quorum), queuearg.DeliveryLimit: int64(1_000_000),
				queuearg.QueueLeaderLocator: queuearg.Balanced,
			},
		})
		if err == nil {
			set.Arguments = management.Arguments(have)
			set.Type, _ = have[queuearg.QueueType].(string)
		}
		cause = cmp.Or(cause, err)
	}
	if cause != nil {
		l.store.logger.Info("The delivery limit of a queue is not known", watermill.LogFields{
			"queue": l.queue, "cause": cause.Error(),
		})
	}
	return set
}
