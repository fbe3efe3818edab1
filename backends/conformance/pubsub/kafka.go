package pubsub

import (
	"context"
	"errors"
	"strings"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// kafkaBrokers is package kafkaretry, at a list of host:port with commas.
type kafkaBrokers struct {
	brokers []string
	logger  watermill.LoggerAdapter
}

func kafkaRetry(addresses string, logger watermill.LoggerAdapter) Backend {
	return kafkaBrokers{strings.Split(addresses, ","), logger}
}

// Publisher implements Backend.
func (k kafkaBrokers) Publisher() (message.Publisher, error) {
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: k.brokers}, k.logger)
}

func (k kafkaBrokers) config(app App) kafkaretry.Config {
	return kafkaretry.Config{Brokers: k.brokers, Group: app.Group, Policy: app.Policy, Prefix: app.Prefix}
}

// Connect implements Backend.
func (k kafkaBrokers) Connect(app App) (retry.Connection, error) {
	return kafkaretry.Connect(k.config(app), k.logger)
}

// Letters implements Backend.
func (k kafkaBrokers) Letters(app App) (letters.Store, error) {
	return kafkaretry.Letters(k.config(app), k.logger)
}

// DeadTopic implements Backend.
func (kafkaBrokers) DeadTopic(app App, _, topic string) string {
	return relaytopic.Names{Prefix: app.Prefix}.Dead(relaytopic.Key(app.Group, topic))
}

// Left implements Backend. It counts the messages of tiers and return topics.
func (k kafkaBrokers) Left(_ context.Context, app App, _ []string) (left int, err error) {
	client, err := sarama.NewClient(k.brokers, sarama.NewConfig())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	topics, err := client.Topics()
	if err != nil {
		return 0, err
	}
	names := relaytopic.Names{Prefix: app.Prefix}
	for _, topic := range topics {
		if !names.IsOwn(topic) || names.IsDead(topic) {
			continue
		}
		partitions, err := client.Partitions(topic)
		if err != nil {
			return left, err
		}
		for _, partition := range partitions {
			next, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
			if err != nil {
				return left, err
			}
			oldest, err := client.GetOffset(topic, partition, sarama.OffsetOldest)
			if err != nil {
				return left, err
			}
			left += int(next - oldest)
		}
	}
	return left, nil
}
