package workqueue

import (
	"context"
	"errors"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// probeTimeout bounds the wait for the broker. A broker in an alarm confirms nothing, which does not stop the app's
// start.
const probeTimeout = 5 * time.Second

// silentFor is how long nothing is probed after an alarm has blocked a probe. Each of many handlers would wait anew,
// and what they take may be what ends the alarm. A connection of the builder is new, and blocked once it publishes.
const silentFor = time.Minute

// probe checks that the user may publish failures, before the app consumes anything. It checks each exchange until the
// broker has confirmed a message once. Where the broker does not answer in time, or there is no connection for
// publishing, it returns nil.
func (i *Inspector) probe(b Broker, t topology.Topology) error {
	err := i.probeExchange(b, i.config.Prefix.RetryExchange())
	if other := t.Exchanges[0].Name; err == nil && other != i.config.Prefix.RetryExchange() {
		err = i.probeExchange(b, other)
	}
	return err
}

func (i *Inspector) probeExchange(b Broker, exchange string) error {
	if i.isSilent() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	err := i.probed.Do(ctx, 0, exchange, time.Time{}, func() error { return probe(ctx, b, exchange) })
	switch {
	case ctx.Err() != nil:
		if b.Blocked() {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.silent = time.Now()
		}
		return nil
	case errors.Is(err, errUnconfirmed):
		return nil
	}
	return err
}

func (i *Inspector) isSilent() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.silent.IsZero() && time.Since(i.silent) < silentFor
}

var errUnconfirmed = errors.New("the broker has not confirmed in time")

// probe returns nil when the broker has confirmed a message. No queue is bound with its routing key.
func probe(ctx context.Context, b Broker, exchange string) error {
	channel, err := b.Publishing(ctx)
	if err != nil {
		return errUnconfirmed
	}
	defer channel.Close()
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.Confirm(false); err != nil {
		return refusal.Explain("publish to exchange", exchange, err)
	}
	confirm, err := channel.PublishWithDeferredConfirm(exchange, "probe", false, false, amqp091.Publishing{})
	if err != nil {
		return refusal.Explain("publish to exchange", exchange, err)
	}
	confirmed, err := confirm.WaitContext(ctx)
	if confirmed {
		return nil
	}
	if err == nil {
		if refused := <-closed; refused != nil {
			return refusal.Explain("publish to exchange", exchange, refused)
		}
	}
	return errUnconfirmed
}
