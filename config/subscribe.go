package config

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// writeProbeTimeout bounds the wait for a broker that confirms nothing, in an alarm for instance: no reason not to start.
const writeProbeTimeout = 5 * time.Second

// topologyBuilder declares the app's topology and ours at every Subscribe and reconnect.
type topologyBuilder struct{ builder *Builder }

// BuildTopology implements watermill-amqp's TopologyBuilder. The first time for a queue it looks at the queue over a
// connection of its own.
func (t topologyBuilder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	b := t.builder
	topology := b.topologyOf(queue)
	if err := errors.Join(topology.Validate(), b.names.validateExchange(exchange)); err != nil {
		return err
	}
	if b.verify {
		return b.verifyTopology(channel, topology)
	}
	if _, standard := b.app.TopologyBuilder.(*amqp.DefaultTopologyBuilder); standard && exchange != "" && config.QueueBind.GenerateRoutingKey == nil {
		return fmt.Errorf("AMQP.QueueBind.GenerateRoutingKey is nil: it must say with which key queue %q is bound to exchange %q", queue, exchange)
	}
	app := Queue{Name: queue, Durable: config.Queue.Durable, Arguments: config.Queue.Arguments}
	arguments, err := b.work.resolve(app, topology, logger)
	if err != nil {
		return err
	}
	config.Queue.Arguments = arguments
	if err := b.app.TopologyBuilder.BuildTopology(channel, queue, exchange, config, logger); err != nil {
		b.work.forget(queue)
		return explain("build the app's own topology of queue", queue, err)
	}
	if err := topology.declareRetry(channel, topology.Bindings); err != nil {
		b.work.forget(queue)
		return err
	}
	return nil
}

// ExchangeDeclare implements watermill-amqp's TopologyBuilder, for a publisher.
func (t topologyBuilder) ExchangeDeclare(channel *amqp091.Channel, exchange string, config amqp.Config) error {
	return t.builder.app.TopologyBuilder.ExchangeDeclare(channel, exchange, config)
}

// verifyTopology declares nothing. Only once it is all there, publishing is tried.
func (b *Builder) verifyTopology(channel *amqp091.Channel, topology Topology) error {
	if err := topology.Verify(channel); err != nil {
		return err
	}
	_, err := b.work.once(topology.WorkQueue.Name, func(connection *amqp091.Connection) (amqp091.Table, error) {
		probing, err := connection.Channel()
		if err != nil {
			return nil, fmt.Errorf("cannot open a channel to try publishing: %w", err)
		}
		return nil, probe(probing, topology.Exchanges[0].Name)
	})
	return err
}

// declareAndProbe declares all but the work queue.
func declareAndProbe(connection *amqp091.Connection, topology Topology) error {
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("cannot open a channel to declare the topology: %w", err)
	}
	if err := topology.declareRetry(channel, topology.Bindings); err != nil {
		return err
	}
	return probe(channel, topology.Exchanges[0].Name)
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
