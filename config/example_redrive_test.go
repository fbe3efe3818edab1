package config_test

import (
	"context"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// Dead letters go back to the queue they failed on, with all of their retries.
func Example_redrive() {
	logger := watermill.NopLogger{}
	var letters <-chan *message.Message
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Exponential(time.Second, 5, 4),
	})
	check(err)

	back := rabbit.SubscriberConfig()
	back.Exchange.GenerateName = func(string) string { return "" } // not to the other consumer groups
	back.Publish.GenerateRoutingKey = back.Queue.GenerateName
	back.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(back, logger)
	check(err)

	for letter := range letters {
		for _, key := range retrymw.RecordKeys() {
			delete(letter.Metadata, key) // with them its retries are still used up
		}
		letter.SetContext(context.Background())
		if err := publisher.Publish("orders", letter); err != nil {
			log.Print(err)
			letter.Nack()
			continue
		}
		letter.Ack()
	}
}
