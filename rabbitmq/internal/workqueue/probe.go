package workqueue

import (
	"context"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
)

// probeTimeout bounds the wait for a confirm. A broker in an alarm confirms nothing, which does not stop the app's start.
const probeTimeout = 5 * time.Second

// probe checks that the user may publish failures, before the app consumes anything. No queue is bound with its routing key. It
// must not run on a connection that consumes: in an alarm the broker blocks a connection that publishes.
func probe(channel *amqp091.Channel, exchange string) error {
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.Confirm(false); err != nil {
		return refusal.Explain("publish to exchange", exchange, err)
	}
	confirm, err := channel.PublishWithDeferredConfirm(exchange, "probe", false, false, amqp091.Publishing{})
	if err != nil {
		return refusal.Explain("publish to exchange", exchange, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if confirmed, err := confirm.WaitContext(ctx); err == nil && !confirmed {
		if refused := <-closed; refused != nil {
			return refusal.Explain("publish to exchange", exchange, refused)
		}
	}
	return nil
}
