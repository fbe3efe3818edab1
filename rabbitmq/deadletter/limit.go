package deadletter

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/redelivery"
)

const (
	// defaultLimit is the delivery limit of a quorum queue from RabbitMQ 4.0 on, unless it has another one.
	defaultLimit = 20
	// limitMargin is how many deliveries before its limit a letter is replaced.
	limitMargin = 4
)

// keep leaves a letter in the queue. If it is near the delivery limit, a copy at the end of the queue takes its place.
func (l *look) keep(ctx context.Context, d *amqp091.Delivery) error {
	if redelivery.Failed(d.Headers) < l.replacedAt(d) {
		return nil
	}
	if l.copies == nil {
		copies, err := l.store.newSender()
		if err != nil {
			return err
		}
		l.copies = copies
	}
	if err := l.copies.send(ctx, destination{key: l.queue}, same(d)); err != nil {
		return fmt.Errorf("a letter in %q was delivered %d times, which is near the delivery limit of the queue, and cannot be replaced by a copy: %w",
			l.queue, redelivery.Failed(d.Headers), err)
	}
	l.replaced = append(l.replaced, d.DeliveryTag) // acknowledged at the end: now it would make room for its own copy
	return nil
}

// replacedAt returns the count of deliveries from which on a letter is replaced by a copy. Where the limit is not known, it is the default
// of RabbitMQ, except in a queue that the library has declared without a limit that can be reached: its letters came through the
// library's own exchange. Beyond the limit of a tier the broker only sends a message back to its work queue.
func (l *look) replacedAt(d *amqp091.Delivery) int64 {
	limit, work, prefix := l.limit, naming.WorkQueueOf(l.queue), l.store.prefix
	_, _, isTier := prefix.TierOf(l.queue)
	switch {
	case isTier:
		return math.MaxInt64
	case limit > 0:
	case l.queue == prefix.Orphans(), d.Exchange != "" && d.RoutingKey == naming.DeadKey(work) && l.queue == naming.DeadQueue(work):
		return math.MaxInt64
	default:
		limit = defaultLimit
	}
	return max(limit-limitMargin, 1)
}

// deliveryLimit asks the management API, if there is one, for the delivery limit of a queue. It returns 0 where it is not known, and an error
// for a queue that would be deleted with the consumer of a look.
func (s *Store) deliveryLimit(ctx context.Context, version, queue string) (int64, error) {
	if s.config.Management == "" {
		return 0, nil
	}
	client, err := s.managementClient()
	if err != nil {
		return 0, err
	}
	set, err := client.Settings(ctx, queue)
	switch argument, policy := set.DeliveryLimit, set.PolicyDeliveryLimit; {
	case err != nil:
		s.logger.Info("The delivery limit of a queue is not known", watermill.LogFields{"queue": queue, "cause": err.Error()})
		return 0, nil
	case set.AutoDelete:
		return 0, fmt.Errorf("the queue %q is an auto-delete queue: RabbitMQ deletes it, with its letters, when a consumer ends that has looked at it; "+
			"bind a queue that stays in its place", queue)
	case argument > 0 && policy > 0:
		return min(argument, policy), nil
	case argument > 0 || policy > 0:
		return max(argument, policy), nil
	case argument < 0 || strings.HasPrefix(version, "3."):
		return math.MaxInt64, nil // none
	}
	return defaultLimit, nil
}
