package workqueue

import (
	"context"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// probeTimeout bounds the wait for the broker. A broker in an alarm confirms nothing, which does not stop the app's
// start.
const probeTimeout = 5 * time.Second

// probe checks that the user may publish failures, before the app consumes anything. It checks each exchange until the
// broker has confirmed a message once. Where the broker does not answer in time, or there is no connection for
// publishing, it returns nil.
func (i *Inspector) probe(b Broker, t topology.Topology) error {
	err := i.probeExchange(b, i.config.Prefix.RetryExchange())
	if other := t.Exchange(); err == nil && other != i.config.Prefix.RetryExchange() {
		err = i.probeExchange(b, other)
	}
	return err
}

func (i *Inspector) probeExchange(b Broker, exchange string) error {
	i.mu.Lock()
	done := i.probed[exchange]
	i.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	type result struct {
		confirmed bool
		err       error
	}
	probed := make(chan result, 1)
	go func() {
		confirmed, err := probe(ctx, b, exchange)
		probed <- result{confirmed, err}
	}()
	select {
	case r := <-probed:
		i.mu.Lock()
		i.probed[exchange] = r.confirmed
		i.mu.Unlock()
		return r.err
	case <-ctx.Done():
		return nil
	}
}

// probe reports whether the broker has confirmed a message. No queue is bound with its routing key.
func probe(ctx context.Context, b Broker, exchange string) (confirmed bool, err error) {
	channel, err := b.Publishing(ctx)
	if err != nil {
		return false, nil
	}
	defer channel.Close()
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.Confirm(false); err != nil {
		return false, refusal.Explain("publish to exchange", exchange, err)
	}
	confirm, err := channel.PublishWithDeferredConfirm(exchange, "probe", false, false, amqp091.Publishing{})
	if err != nil {
		return false, refusal.Explain("publish to exchange", exchange, err)
	}
	confirmed, err = confirm.WaitContext(ctx)
	if err == nil && !confirmed {
		if refused := <-closed; refused != nil {
			return false, refusal.Explain("publish to exchange", exchange, refused)
		}
	}
	return confirmed, nil
}
