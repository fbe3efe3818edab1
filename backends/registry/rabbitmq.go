package registry

import (
	"errors"
	"fmt"

	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

func cleanRabbitMQ(uri string, app backends.App, topics []string) (err error) {
	rabbit, err := config.NewBuilder(config.Config{
		AMQP:   amqpv2.NewDurablePubSubConfig(uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group)),
		Policy: retry.Policy{Schedule: app.Schedule}, Settings: rabbitmq.Settings{Prefix: app.Prefix},
	})
	if err != nil {
		return err
	}
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for _, topic := range topics {
		topology := rabbit.Topology(topic)
		exchanges := []string{topic}
		for _, exchange := range topology.Exchanges {
			exchanges = append(exchanges, exchange.Name)
		}
		for _, queue := range append(topology.Queues, topology.WorkQueue) {
			if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
				return fmt.Errorf("cannot delete the queue %s: %w", queue.Name, err)
			}
		}
		for _, exchange := range exchanges {
			if err := channel.ExchangeDelete(exchange, false, false); err != nil {
				return fmt.Errorf("cannot delete the exchange %s: %w", exchange, err)
			}
		}
	}
	return nil
}
