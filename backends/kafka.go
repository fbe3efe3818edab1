package backends

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/relay"
)

// Kafka is Kafka, at addresses with commas between them. It knows no redelivery limit: only a rebalance of the group hands a
// message out again, and waits for the one that is held, up to sarama's Rebalance.Timeout of 60 seconds.
func Kafka(addresses string, logger watermill.LoggerAdapter) Backend {
	brokers := strings.Split(addresses, ",")
	subscriber := func(group string) (message.Subscriber, error) {
		return &kafkaSubscriber{brokers: brokers, group: group, logger: logger}, nil
	}
	publisher := func() (message.Publisher, error) {
		return kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, logger)
	}
	retries := parts{
		failures:   publisher,
		subscriber: func(group string, _ time.Duration) (message.Subscriber, error) { return subscriber(group) },
		tier: func(relay.SubscriberParams, time.Duration) (message.Subscriber, error) {
			return subscriber("retry-relay")
		},
	}
	return Backend{
		Name: "kafka", Publisher: publisher,
		Connect: func(app App) (*Retries, error) { return retries.connect(app, logger) },
	}
}

// kafkaSubscriber makes the topic, where it is missing, and joins a consumer group for each topic: a member that comes or goes
// has all topics of its group handed out anew.
type kafkaSubscriber struct {
	brokers []string
	group   string
	logger  watermill.LoggerAdapter

	mu     sync.Mutex
	topics []*kafka.Subscriber
}

func (s *kafkaSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_2_0_0                      // kfake and this sarama do not understand each other above it
	config.Consumer.Offsets.Initial = sarama.OffsetOldest // not only what comes after the subscription
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: s.brokers, ConsumerGroup: s.group + "." + topic, OverwriteSaramaConfig: config,
		// A tier needs one partition: several are each in order, but not together.
		InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1},
	}, s.logger)
	if err != nil {
		return nil, err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return nil, errors.Join(err, subscriber.Close())
	}
	s.mu.Lock()
	s.topics = append(s.topics, subscriber)
	s.mu.Unlock()
	return subscriber.Subscribe(ctx, topic)
}

func (s *kafkaSubscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var faults []error
	for _, subscriber := range s.topics {
		faults = append(faults, subscriber.Close())
	}
	return errors.Join(faults...)
}
