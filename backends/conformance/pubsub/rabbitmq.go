package pubsub

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// rabbitMQ is RabbitMQ through both majors of watermill-amqp. The broker delays the messages, in queues with a TTL:
// there is no relay. App.Lease has no effect.
type rabbitMQ struct {
	uri    string
	logger watermill.LoggerAdapter
}

type v2 struct{ rabbitMQ }

type v3 struct{ rabbitMQ }

func rabbitMQv2(uri string, logger watermill.LoggerAdapter) Backend { return v2{rabbitMQ{uri, logger}} }

func rabbitMQv3(uri string, logger watermill.LoggerAdapter) Backend { return v3{rabbitMQ{uri, logger}} }

func (r rabbitMQ) fanOutV2(group string) amqpv2.Config {
	c := amqpv2.NewDurablePubSubConfig(r.uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(group))
	c.Publish.ConfirmDelivery = true
	return c
}

func (r rabbitMQ) fanOutV3(group string) amqpv3.Config {
	c := amqpv3.NewDurablePubSubConfig(r.uri, amqpv3.GenerateQueueNameTopicNameWithSuffix(group))
	c.Publish.ConfirmDelivery = true
	return c
}

// Publisher implements Backend.
func (v v2) Publisher() (message.Publisher, error) {
	return amqpv2.NewPublisher(v.fanOutV2(""), v.logger)
}

// Publisher implements Backend.
func (v v3) Publisher() (message.Publisher, error) {
	return amqpv3.NewPublisher(v.fanOutV3(""), v.logger)
}

// Connect implements Backend.
func (v v2) Connect(app App) (retry.Connection, error) {
	return config.Connect(v.config(app), v.logger)
}

// Connect implements Backend.
func (v v3) Connect(app App) (retry.Connection, error) {
	return amqp3.Connect(amqp3.Config{
		AMQP: v.fanOutV3(app.Group), Policy: app.Policy, Settings: rabbitmq.Settings{Prefix: app.Prefix},
	}, v.logger)
}

func (r rabbitMQ) config(app App) config.Config {
	return config.Config{
		AMQP: r.fanOutV2(app.Group), Policy: app.Policy, Settings: rabbitmq.Settings{Prefix: app.Prefix},
	}
}

// Letters implements Backend.
func (r rabbitMQ) Letters(app App) (letters.Store, error) {
	return deadletter.Open(deadletter.Config{URI: r.uri, Prefix: app.Prefix}, r.logger)
}

// DeadTopic implements Backend.
func (rabbitMQ) DeadTopic(app App, _, topic string) string {
	return deadletter.QueueOf(amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group)(topic))
}

// Left implements Backend.
func (r rabbitMQ) Left(_ context.Context, app App, topics []string) (left int, err error) {
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
func (r rabbitMQ) Clean(app App, topics []string) error {
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
func (r rabbitMQ) with(
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
