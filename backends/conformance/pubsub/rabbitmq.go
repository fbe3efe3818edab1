package pubsub

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// rabbitServer is RabbitMQ. The broker delays the messages, in queues with a TTL: there is no relay. App.Lease has no
// effect.
type rabbitServer struct {
	uri    string
	logger watermill.LoggerAdapter
}

func rabbitMQ(uri string, logger watermill.LoggerAdapter) Backend { return rabbitServer{uri, logger} }

func (r rabbitServer) config(app App) config.Config {
	c := amqp.NewDurablePubSubConfig(r.uri, amqp.GenerateQueueNameTopicNameWithSuffix(app.Group))
	c.Publish.ConfirmDelivery = true
	return config.Config{AMQP: c, Policy: app.Policy, Settings: rabbitmq.Settings{Prefix: app.Prefix}}
}

// Publisher implements Backend.
func (r rabbitServer) Publisher() (message.Publisher, error) {
	return amqp.NewPublisher(r.config(App{}).AMQP, r.logger)
}

// Connect implements Backend.
func (r rabbitServer) Connect(app App) (retry.Connection, error) {
	return config.Connect(r.config(app), r.logger)
}

// Letters implements Backend.
func (r rabbitServer) Letters(app App) (letters.Store, error) {
	return deadletter.Open(deadletter.Config{URI: r.uri, Prefix: app.Prefix}, r.logger)
}

// DeadTopic implements Backend.
func (rabbitServer) DeadTopic(app App, topic string) string {
	return deadletter.QueueOf(amqp.GenerateQueueNameTopicNameWithSuffix(app.Group)(topic))
}

// Left implements Backend.
func (r rabbitServer) Left(_ context.Context, app App, topics []string) (left int, err error) {
	err = r.with(app, topics, func(channel *amqp091.Channel, t topology.Topology, _ string) error {
		for _, queue := range t.Queues {
			found, err := channel.QueueDeclarePassive(queue.Name, false, false, false, false, nil)
			if err != nil {
				return fmt.Errorf("cannot look at the queue %s: %w", queue.Name, err)
			}
			left += found.Messages
		}
		return nil
	})
	return left, err
}

// Clean implements Cleaner.
func (r rabbitServer) Clean(app App, topics []string) error {
	return r.with(app, topics, func(channel *amqp091.Channel, t topology.Topology, topic string) error {
		for _, queue := range append(t.Queues, t.WorkQueue) {
			if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
				return fmt.Errorf("cannot delete the queue %s: %w", queue.Name, err)
			}
		}
		exchanges := []string{topic}
		for _, exchange := range t.Exchanges {
			exchanges = append(exchanges, exchange.Name)
		}
		for _, exchange := range exchanges {
			if err := channel.ExchangeDelete(exchange, false, false); err != nil {
				return fmt.Errorf("cannot delete the exchange %s: %w", exchange, err)
			}
		}
		return nil
	})
}

// with calls a function for the topology of each topic.
func (r rabbitServer) with(
	app App, topics []string, do func(channel *amqp091.Channel, t topology.Topology, topic string) error,
) (err error) {
	rabbit, err := config.NewBuilder(r.config(app))
	if err != nil {
		return err
	}
	connection, err := amqp091.Dial(r.uri)
	if err != nil {
		return fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if err := do(channel, rabbit.Topology(topic), topic); err != nil {
			return err
		}
	}
	return nil
}
