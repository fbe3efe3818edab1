package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
)

// Kafka is Apache Kafka. addresses is a list of host:port, separated by commas.
//
// A publish waits for all in-sync replicas. How many these are at least is the cluster's or topic's
// min.insync.replicas: with Kafka's default of 1, the death of the leader can still lose a message. Set it to 2, with a
// replication factor of 3.
//
// A subscription creates its topic where it is missing, with one partition and the cluster's
// default.replication.factor. Kafka before 2.4 and some hosted services refuse that: create the topics beforehand
// there.
//
// Kafka has no redelivery limit, and App.Limit and App.HandlerLimit have no effect. Kafka delivers a message again only
// after a rebalance of the group. A rebalance waits for the message that a consumer has not acknowledged, up to
// sarama's Rebalance.Timeout of 60 seconds.
func Kafka(addresses string, logger watermill.LoggerAdapter) Backend {
	return relayed{pubSub: kafkaBrokers{strings.Split(addresses, ","), logger}, logger: logger}
}

type kafkaBrokers struct {
	brokers []string
	logger  watermill.LoggerAdapter
}

func (k kafkaBrokers) publisher(App) (message.Publisher, error) {
	return kafka.NewPublisher(
		kafka.PublisherConfig{Brokers: k.brokers, OverwriteSaramaConfig: kafkaProducer()}, k.logger)
}

func (k kafkaBrokers) subscriber(app App, p relay.SubscriberParams) (message.Subscriber, error) {
	return &kafkaSubscriber{kafkaBrokers: k, group: app.group(p)}, nil
}

func (k kafkaBrokers) reader(App) (relayletters.Reader, error) { return newKafkaLetters(k.brokers) }

// kafkaProducer waits for all in-sync replicas: a message that only the leader has stored is lost if it fails. The
// producer is not idempotent. Idempotence prevents duplicates, which are allowed, and costs one request in flight per
// broker.
func kafkaProducer() *sarama.Config {
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	return config
}

func kafkaConsumer() *sarama.Config {
	config := kafka.DefaultSaramaSubscriberConfig()
	// the highest version that this sarama and the tests' kfake have in common
	config.Version = sarama.V2_2_0_0
	// a new group also gets what was published before it subscribed
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

// newKafkaTopic asks for one partition: the messages of a tier are in order only within a partition. A replication
// factor of -1 asks for the cluster's default.
func newKafkaTopic() *sarama.TopicDetail {
	return &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: -1}
}

// kafkaSubscriber joins one consumer group for each topic. With one group for all topics, each member that joins or
// leaves would cause a rebalance of all of them.
type kafkaSubscriber struct {
	kafkaBrokers
	group string

	mu     sync.Mutex
	topics []*kafka.Subscriber
}

func (s *kafkaSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	exists, err := kafkaTopicExists(s.brokers, topic)
	if err != nil {
		return nil, err
	}
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: s.brokers, ConsumerGroup: s.group + "." + topic,
		OverwriteSaramaConfig: kafkaConsumer(), InitializeTopicDetails: newKafkaTopic(),
	}, s.logger)
	if err != nil {
		return nil, err
	}
	if !exists {
		if err := subscriber.SubscribeInitialize(topic); err != nil {
			return nil, errors.Join(err, subscriber.Close())
		}
	}
	s.mu.Lock()
	s.topics = append(s.topics, subscriber)
	s.mu.Unlock()
	return subscriber.Subscribe(ctx, topic)
}

// kafkaTopicExists reports whether a topic is ready for use. It keeps an app with topics of its own from asking for a
// creation that it has no permission for.
func kafkaTopicExists(brokers []string, topic string) (exists bool, err error) {
	admin, err := sarama.NewClusterAdmin(brokers, kafkaConsumer())
	if err != nil {
		return false, fmt.Errorf("cannot connect to Kafka at %s: %w", strings.Join(brokers, ","), err)
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	found, err := admin.DescribeTopics([]string{topic})
	if err != nil {
		return false, fmt.Errorf("cannot look for the Kafka topic %q: %w", topic, err)
	}
	return len(found) == 1 && errors.Is(found[0].Err, sarama.ErrNoError), nil
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
