package retry_test

import (
	"context"
	"log"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

// redrive sends at most n dead letters of a topic back to its work queue. It ends after n letters, with the first error, or after
// a minute. app is the app's own configuration, and group is the Group of the handler, or "".
func redrive(app amqp.Config, topic, group string, n int, logger watermill.LoggerAdapter) error {
	reader, err := config.DeadLetterSubscriberConfig(app, group)
	if err != nil {
		return err
	}
	connection := publisher.ConnectionConfig{
		URI: app.Connection.AmqpURI, TLS: app.Connection.TLSConfig, AMQP: app.Connection.AmqpConfig,
	}
	back, err := publisher.New(connection, publisher.Config{ // to the default exchange, confirmed and mandatory
		Marshal: reader.Marshaler.Marshal,
	}, logger)
	if err != nil {
		return err
	}
	defer back.Close()
	subscriber, err := amqp.NewSubscriber(reader, logger)
	if err != nil {
		return err
	}
	defer subscriber.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	letters, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	queue := strings.TrimSuffix(reader.Queue.GenerateName(topic), ".dead") // the work queue of a reader's queue
	var failed error
	for letter := range letters { // until the subscription has ended
		if n <= 0 || failed != nil {
			stop()
			letter.Nack() // it stays a dead letter
			continue
		}
		for _, key := range retrymw.RecordKeys() {
			delete(letter.Metadata, key) // with them its retries are still used up
		}
		if failed = back.Publish(queue, letter); failed != nil {
			stop()
			letter.Nack()
			continue
		}
		letter.Ack()
		if n--; n == 0 {
			stop()
		}
	}
	if n > 0 && failed == nil {
		failed = ctx.Err() // fewer than n dead letters, or not done in a minute
	}
	return failed
}

// The whole program: it needs the app's own configuration, and neither its schedule nor its prefix.
func Example_redrive() {
	uri, logger := "amqp://guest:guest@localhost:5672/", watermill.NopLogger{}

	app := amqp.NewDurableQueueConfig(uri)
	check(redrive(app, "orders", "", 40, logger))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
