package ordered

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
)

// An intake moves the messages of a session to their partitions.
type intake struct {
	mover
	mu       sync.Mutex          // guards unrouted, and is held while returns is read
	unrouted map[string]bool     // routing keys with which no queue got a message that was moved
	returns  chan amqp091.Return // messages that no queue got
}

func newIntake(m mover, returns chan amqp091.Return) *intake {
	return &intake{mover: m, unrouted: map[string]bool{}, returns: returns}
}

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

var (
	errReturned = errors.New("no queue has got a message that was moved to its partition")
	errRefused  = errors.New("the broker has refused a message that was moved to its partition, by a nack")
)

// move moves a message of the intake to its partition. Where that fails, it goes back, for a reason that is logged once
// for all of its session.
func (n *session) move(a *dispatch.Arrival) {
	err := panics.Error("Route", func() error { return n.publish(a) })
	if err != nil {
		if n.Gone().Err() == nil {
			n.of.Logger.Error("A message cannot be moved to its partition: it goes back, with those behind it", err,
				watermill.LogFields{"message_uuid": a.Msg.UUID})
		}
		n.of.Pause(a)
	}
	n.Settle(a, err == nil)
}

// publish publishes a message of the intake on the channel that has received it: a process that the broker has taken
// for lost moves nothing more. A message that comes to its partition once more, alone and late, would be an older one
// after a newer one. It returns nil when the broker has routed and confirmed the message.
func (n *session) publish(a *dispatch.Arrival) error {
	ctx := a.Msg.Context()
	exchange, key, publishing, err := n.of.of.order.Partitions.Route(n.of.Topic, a.Msg, a.Delivery)
	if err != nil {
		return err
	}
	confirm, err := n.intake.publish(ctx, exchange, key, true, publishing)
	if err != nil {
		return err
	}
	select {
	case <-confirm.Done():
	case <-n.Lost.Done():
		return context.Cause(n.Lost)
	case <-ctx.Done(): // the session ends, and the broker confirms nothing
		return context.Cause(ctx)
	}
	if n.intake.hasReturned(key) {
		err := fmt.Errorf("%w: exchange %q has no binding with the routing key %q. Bind the queue of that partition, or "+
			"start an app that may declare it", errReturned, exchange, key)
		n.Leave(err)
		return err
	}
	if !confirm.Acked() {
		if n.intake.IsClosed() { // amqp091 nacks all that is not confirmed
			<-n.Lost.Done()
			return context.Cause(n.Lost)
		}
		n.Leave(errRefused)
		return errRefused
	}
	return nil
}

// hasReturned reports whether the broker has returned a message with this routing key. It is called after the confirm
// of one. A return does not name its message. Where messages of a partition are returned, those that were routed just
// before may be moved twice, which is a rewind.
func (i *intake) hasReturned(key string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		select {
		case returned, open := <-i.returns:
			if open {
				i.unrouted[returned.RoutingKey] = true
				continue
			}
		default:
		}
		return i.unrouted[key]
	}
}
