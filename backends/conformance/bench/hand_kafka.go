package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// kafkaPartitions of the topics: each has one message in flight.
const kafkaPartitions = 16

var kafkaBackend = backend{
	name:    "kafka",
	prepare: func(address, topic string) error { return createKafka(address, topic) },
	open: func(address, topic string) (app, error) {
		publisher, err := kafkaPublisher(address)
		return &kafkaApp{address: address, topic: topic, publisher: publisher}, err
	},
}

func createKafka(address string, topics ...string) error {
	admin, err := sarama.NewClusterAdmin(strings.Split(address, ","), kafkaConsumer())
	if err != nil {
		return err
	}
	var faults []error
	for _, topic := range topics {
		err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: kafkaPartitions, ReplicationFactor: 1}, false)
		if !errors.Is(err, sarama.ErrTopicAlreadyExists) {
			faults = append(faults, err)
		}
	}
	return errors.Join(append(faults, admin.Close())...)
}

func kafkaConsumer() *sarama.Config {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_2_0_0 // as the library has by default
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func kafkaPublisher(address string) (message.Publisher, error) {
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	return kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: strings.Split(address, ","), OverwriteSaramaConfig: config,
	}, logger())
}

// kafkaApp keeps what waits in a second topic. Its reader sleeps until a message is due: the delays must be the same
// for all messages, or each needs a topic.
type kafkaApp struct {
	address, topic string
	publisher      message.Publisher
}

const dueKey = "due"

func (a *kafkaApp) waiting() string { return a.topic + ".waiting" }

func (a *kafkaApp) subscriber(group string) (message.Subscriber, error) {
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: strings.Split(a.address, ","), ConsumerGroup: group, OverwriteSaramaConfig: kafkaConsumer(),
	}, logger())
}

func (a *kafkaApp) subscribers() ([]message.Subscriber, error) {
	if err := createKafka(a.address, a.waiting()); err != nil {
		return nil, err
	}
	s, err := a.subscriber(group + "." + a.topic)
	return []message.Subscriber{s}, err
}

func (a *kafkaApp) wait(msg *message.Message, due time.Time) error {
	msg.Metadata.Set(dueKey, strconv.FormatInt(due.UnixNano(), 10))
	return a.publisher.Publish(a.waiting(), msg)
}

func (a *kafkaApp) move(ctx context.Context) error {
	s, err := a.subscriber("mover." + a.topic)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger())
	if err != nil {
		return err
	}
	router.AddConsumerHandler("mover", a.waiting(), s, func(msg *message.Message) error {
		due, err := strconv.ParseInt(msg.Metadata.Get(dueKey), 10, 64)
		if err != nil {
			return fmt.Errorf("a message without its time: %w", err)
		}
		select {
		case <-time.After(time.Until(time.Unix(0, due))):
			return a.publisher.Publish(a.topic, msg.Copy())
		case <-msg.Context().Done():
			return msg.Context().Err()
		}
	})
	return router.Run(ctx)
}

func (a *kafkaApp) Close() error { return a.publisher.Close() }
