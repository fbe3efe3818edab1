package subscriber

import (
	"context"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A mover is the channel of the intake, in confirm mode.
type mover interface {
	publish(
		ctx context.Context, exchange, key string, mandatory bool, publishing amqp091.Publishing,
	) (confirmation, error)
	IsClosed() bool
}

// A confirmation is that of one message. It comes after the return of the message, where the broker returns it.
type confirmation interface {
	Done() <-chan struct{}
	Acked() bool
}

// channelMover is the mover of a broker.
type channelMover struct{ *amqp091.Channel }

func (c channelMover) publish(
	ctx context.Context, exchange, key string, mandatory bool, publishing amqp091.Publishing,
) (confirmation, error) {
	return c.PublishWithDeferredConfirmWithContext(ctx, exchange, key, mandatory, false, publishing)
}

// move moves a message of the intake to its partition, on the channel that has received it: a process that the broker
// has taken for lost moves nothing more. A message that comes to its partition once more, alone and late, would be an
// older one after a newer one. It returns nil when the broker has routed and confirmed the message.
func (n *session) move(ctx context.Context, topic string, a *arrival) error {
	exchange, key, publishing, err := n.partition.config.Order.Partitions.Route(topic, a.msg, a.delivery)
	if err != nil {
		return err
	}
	confirm, err := n.mover.publish(ctx, exchange, key, true, publishing)
	if err != nil {
		return err
	}
	select {
	case <-confirm.Done():
	case <-n.closed:
		return n.reason
	case <-ctx.Done(): // the session ends, and the broker confirms nothing
		return context.Cause(ctx)
	}
	if n.hasReturned(key) {
		err := fmt.Errorf("%w: exchange %q has no binding with the routing key %q. Bind the queue of that partition, or "+
			"start an app that may declare it", errReturned, exchange, key)
		n.leave(err)
		return err
	}
	if !confirm.Acked() {
		if n.mover.IsClosed() { // amqp091 nacks all that is not confirmed
			<-n.closed
			return n.reason
		}
		n.leave(errRefused)
		return errRefused
	}
	return nil
}

// hasReturned reports whether the broker has returned a message with this routing key. It is called after the confirm
// of one. A return does not name its message. Where messages of a partition are returned, those that were routed just
// before may be moved twice, which is a rewind.
func (n *session) hasReturned(key string) bool {
	n.moving.Lock()
	defer n.moving.Unlock()
	for {
		select {
		case returned, open := <-n.returns:
			if open {
				n.unrouted[returned.RoutingKey] = true
				continue
			}
		default:
		}
		return n.unrouted[key]
	}
}
