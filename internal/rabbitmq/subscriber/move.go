package subscriber

import "context"

// move moves a message of the intake to its partition, on the channel that has received it: a process that the broker
// has taken for lost moves nothing more. A message that comes to its partition once more, alone and late, would be an
// older one after a newer one. It returns nil when the broker has routed and confirmed the message.
func (n *session) move(ctx context.Context, topic string, a *arrival) error {
	exchange, key, publishing, err := n.partition.config.Order.Partitions.Route(topic, a.msg, a.delivery)
	if err != nil {
		return err
	}
	confirm, err := n.channel.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, publishing)
	if err != nil {
		return err
	}
	select {
	case <-confirm.Done():
	case <-n.closed:
		return n.reason
	}
	n.moving.Lock() // a message that was returned is confirmed, too, afterwards
	defer n.moving.Unlock()
	for len(n.returns) > 0 {
		<-n.returns
		n.unrouted = true
		n.leave(errReturned)
	}
	if n.unrouted {
		return errReturned
	}
	if !confirm.Acked() {
		if n.channel.IsClosed() { // amqp091 nacks all that is not confirmed
			<-n.closed
			return n.reason
		}
		n.leave(errRefused)
		return errRefused
	}
	return nil
}
