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
)

// kafkaBrokers is package kafkaretry, at a list of host:port with commas.
type kafkaBrokers struct {
	module[kafkaretry.Config]
	brokers []string
}

func kafkaRetry(addresses string, logger watermill.LoggerAdapter) Backend {
	brokers := strings.Split(addresses, ",")
	config := func(app App) (kafkaretry.Config, func() error, error) {
		config := kafkaretry.Config{Brokers: brokers, Group: app.Group, Policy: app.Policy, Prefix: app.Prefix}
		return config, func() error { return nil }, nil
	}
	return kafkaBrokers{module[kafkaretry.Config]{logger, config, kafkaretry.Connect, kafkaretry.Letters}, brokers}
}

// Publisher implements Backend.
func (k kafkaBrokers) Publisher() (message.Publisher, error) {
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: k.brokers}, k.logger)
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
		stored, err := StoredOnKafka(client, topic)
		if err != nil {
			return left, err
		}
		left += stored
	}
	return left, nil
}

// StoredOnKafka returns how many messages are in a topic.
func StoredOnKafka(client sarama.Client, topic string) (stored int, err error) {
	partitions, err := client.Partitions(topic)
	if err != nil {
		return 0, err
	}
	for _, partition := range partitions {
		for of, sign := range map[int64]int{sarama.OffsetNewest: 1, sarama.OffsetOldest: -1} {
			offset, err := client.GetOffset(topic, partition, of)
			if err != nil {
				return 0, err
			}
			stored += sign * int(offset)
		}
	}
	return stored, nil
}
