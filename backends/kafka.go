package backends

import (
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/relay"
)

// Kafka is Kafka, at addresses with commas between them. It knows no redelivery limit: only a rebalance of the group hands a
// message out again, and waits for the one that is held, up to sarama's Rebalance.Timeout of 60 seconds. A tier needs one
// partition: several are each in order, but not together.
func Kafka(addresses string, logger watermill.LoggerAdapter) Backend {
	brokers := strings.Split(addresses, ",")
	subscriber := func(group string) (message.Subscriber, error) {
		config := kafka.DefaultSaramaSubscriberConfig()
		config.Version = sarama.V2_2_0_0                      // above 2.3 kfake and this sarama do not understand each other
		config.Consumer.Offsets.Initial = sarama.OffsetOldest // not what comes after the subscription: what is there, too
		config.Consumer.Offsets.AutoCommit.Enable = false     // every acknowledgement is committed at once
		return kafka.NewSubscriber(kafka.SubscriberConfig{Brokers: brokers, ConsumerGroup: group, OverwriteSaramaConfig: config}, logger)
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
