package kafkaretry

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect returns a connection to Kafka, or an error that joins all faults of the configuration, or the reason why it
// cannot connect. A nil logger logs nothing. Package relay says what the methods of the connection do.
//
// Connect opens one client for publishes of the app, one for copies, and one that looks at topics and makes them. Each
// handler has two clients of watermill-kafka, one for its topic and one for its return topic, and each tier has one. An
// idle one fetches twice and sends one heartbeat a second. A handler takes about 70 goroutines and half a MiB, and 100
// handlers start in about two seconds. Where brokers do not answer, Close cuts its connections after about 20 seconds.
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
	cluster := newCluster(config, logger)
	app, err := cluster.newProducer(config.producer)
	if err != nil {
		return nil, err
	}
	stock, err := cluster.newProducer(config.copies)
	if err != nil {
		return nil, errors.Join(err, app.Close())
	}
	copies := &copies{cluster: cluster, stock: stock}
	connection, err := relay.Connect(relay.Config{
		Publisher: copies, AppPublisher: publisher{app, cluster}, Policy: config.Policy,
		RetiredSchedule: config.RetiredSchedule, NewSubscriber: cluster.newSubscriber, Group: config.Group,
		Prefix: config.Prefix,
	}, logger)
	if err != nil {
		return nil, errors.Join(err, app.Close(), stock.Close())
	}
	return connection, nil
}

// checkTopic refuses the names that Kafka refuses.
func checkTopic(topic string) error {
	const longest = 249
	if topic == "" || topic == "." || topic == ".." || len(topic) > longest || !relaytopic.Plain(topic) {
		return fmt.Errorf("Kafka refuses the topic name %q: it must have 1 to %d characters, each a letter, a digit, "+
			"a dot, an underscore or a hyphen, and be neither \".\" nor \"..\"", topic, longest)
	}
	return nil
}
