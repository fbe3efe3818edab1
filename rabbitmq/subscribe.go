package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// writeProbeTimeout bounds the wait for a broker that confirms nothing, in an alarm for instance: no reason not to start.
const writeProbeTimeout = 5 * time.Second

// Subscription is one Subscribe or reconnect, as watermill-amqp tells its TopologyBuilder.
type Subscription struct {
	Channel  *amqp091.Channel
	Queue    topology.Queue // as the app's configuration says
	Exchange string
	Logger   watermill.LoggerAdapter

	// Fault is what makes the app's own topology impossible, nil where nothing does.
	Fault error
	// BuildApp builds the app's own topology, with these arguments of the work queue.
	BuildApp func(arguments amqp091.Table) error
}

// BuildTopology declares the app's topology and ours. The first time for a queue it looks at the queue over a connection of
// its own: the broker closes the channel of who asks for something else than there is.
func (b *Builder) BuildTopology(s Subscription) error {
	queue := s.Queue.Name
	t := topology.New(b.config.Config, s.Queue)
	if err := errors.Join(t.Validate(), naming.Prefix(b.config.Prefix).ValidateExchange(s.Exchange)); err != nil {
		return err
	}
	if b.config.VerifyOnly {
		return b.verifyTopology(s, t)
	}
	if s.Fault != nil {
		return s.Fault
	}
	arguments, err := b.work.resolve(s.Queue, t, s.Logger)
	if err != nil {
		return err
	}
	if err := s.BuildApp(arguments); err != nil {
		b.work.forget(queue)
		return explain("build the app's own topology of queue", queue, err)
	}
	if err := t.DeclareRetry(s.Channel); err != nil {
		b.work.forget(queue)
		return err
	}
	return nil
}

// verifyTopology declares nothing. The broker is judged before its objects, which it may be unable to have, and publishing is
// tried only once they are all there.
func (b *Builder) verifyTopology(s Subscription, t topology.Topology) error {
	looked := false
	_, err := b.work.once(s.Queue.Name, func(connection *amqp091.Connection) (amqp091.Table, error) {
		looked = true
		if err := b.work.judgeBroker(s.Queue, brokerVersion(connection), s.Logger); err != nil {
			return nil, err
		}
		channel, err := connection.Channel()
		if err != nil {
			return nil, fmt.Errorf("cannot open a channel to verify the topology: %w", err)
		}
		if err := t.Verify(channel); err != nil {
			return nil, err
		}
		return nil, probe(channel, t.Exchanges[0].Name)
	})
	if err != nil || looked {
		return err
	}
	return t.Verify(s.Channel)
}

// declareAndProbe declares all but the work queue.
func declareAndProbe(connection *amqp091.Connection, t topology.Topology) error {
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("cannot open a channel to declare the topology: %w", err)
	}
	if err := t.DeclareRetry(channel); err != nil {
		return err
	}
	return probe(channel, t.Exchanges[0].Name)
}

// probe finds out, before anything is consumed, whether failures may be published. It publishes to no queue, on a connection
// that nobody consumes from: in an alarm the broker blocks a connection that publishes.
func probe(channel *amqp091.Channel, exchange string) error {
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.Confirm(false); err != nil {
		return explain("publish to exchange", exchange, err)
	}
	confirm, err := channel.PublishWithDeferredConfirm(exchange, "probe", false, false, amqp091.Publishing{})
	if err != nil {
		return explain("publish to exchange", exchange, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeProbeTimeout)
	defer cancel()
	if confirmed, err := confirm.WaitContext(ctx); err == nil && !confirmed {
		if refused := <-closed; refused != nil {
			return explain("publish to exchange", exchange, refused)
		}
	}
	return nil
}
