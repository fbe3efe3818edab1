package kafkaretry

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect returns a connection to Kafka, or an error that joins all faults of the configuration, or the reason why it
// cannot connect. A nil logger logs nothing. Package relay says what the methods of the connection do.
//
// Connect opens one client for all publishes and one that looks at topics and makes them. Each handler has two clients
// of watermill-kafka, one for its topic and one for its return topic, and each tier has one. An idle one fetches twice
// and sends one heartbeat a second. A handler takes about 70 goroutines and half a MiB, and 100 handlers start in about
// two seconds.
//
// Run of the router returns an error, before it consumes, for topics of AddConsumerHandler and AddHandler whose names
// Kafka refuses. It returns an error when it subscribes a tier or a handler whose topics cannot be made, or do not keep
// messages for as long as the longest delay.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid kafkaretry.Config", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	stock, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: config.Brokers, OverwriteSaramaConfig: config.producer(),
	}, logger)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to Kafka at %q: %w", config.Brokers, err)
	}
	cluster := newCluster(config, logger)
	connection, err := relay.Connect(relay.Config{
		Publisher: publisher{stock, cluster}, Policy: config.Policy, RetiredSchedule: config.RetiredSchedule,
		NewSubscriber: cluster.newSubscriber, Group: config.Group, Prefix: config.Prefix,
	}, logger)
	if err != nil {
		return nil, errors.Join(err, stock.Close())
	}
	return connection, nil
}

// publisher is that of the app's messages and of copies. Its Close ends what the subscribers share, too: the
// connection closes it last.
type publisher struct {
	stock   *kafka.Publisher
	cluster *cluster
}

// Publish implements message.Publisher. It returns nil after all in-sync replicas have the messages.
func (p publisher) Publish(topic string, messages ...*message.Message) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	return p.stock.Publish(topic, messages...)
}

// CheckTopic refuses the topic of a handler before any handler consumes.
func (publisher) CheckTopic(topic string) error { return checkTopic(topic) }

func (p publisher) Close() error {
	p.cluster.close()
	return p.stock.Close()
}

// String is the name in logs and metrics.
func (publisher) String() string { return "kafka.Publisher" }

// checkTopic refuses the names that Kafka refuses.
func checkTopic(topic string) error {
	const longest = 249
	if topic == "" || topic == "." || topic == ".." || len(topic) > longest || !relaytopic.Plain(topic) {
		return fmt.Errorf("Kafka refuses the topic name %q: it must have 1 to %d characters, each a letter, a digit, "+
			"a dot, an underscore or a hyphen, and be neither \".\" nor \"..\"", topic, longest)
	}
	return nil
}
