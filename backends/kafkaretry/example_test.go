package kafkaretry_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

var logger = watermill.NopLogger{}

func bill(*message.Message) error { return nil }

// A failed order waits 1s, 5s, 25s, 125s on topics, then goes to retry.dead.billing.orders.
func ExampleConnect() {
	retries, err := kafkaretry.Connect(kafkaretry.Config{
		Brokers: []string{"kafka-1:9092", "kafka-2:9092"},
		Group:   "billing",
		Policy:  retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	check(err)
	router := message.NewDefaultRouter(logger)
	retries.AddConsumerHandler(router, "billing", "orders", bill)
	err = router.Run(context.Background())
	check(errors.Join(err, retries.Close()))
}

// A cluster with TLS and a password.
func ExampleConfig() {
	client := sarama.NewConfig()
	client.Version = sarama.V2_8_0_0
	client.Net.TLS.Enable = true
	client.Net.SASL.Enable, client.Net.SASL.User, client.Net.SASL.Password = true, "billing", "secret"

	config := kafkaretry.Config{
		Brokers: []string{"kafka-1:9093"},
		Sarama:  client,
		Group:   "billing",
		Policy:  retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

// All faults are in one error.
func ExampleConfig_Validate() {
	fmt.Println(kafkaretry.Config{Prefix: "über"}.Validate() != nil)
	// Output: true
}

func ExampleLetters() {
	dead, err := kafkaretry.Letters(kafkaretry.Config{Brokers: []string{"kafka-1:9092"}}, logger)
	check(err)
	for letter, err := range dead.Browse(context.Background(), "retry.dead.billing.orders", letters.Filter{}) {
		check(err)
		fmt.Println(letter.ID, letter.Record.Reason)
	}
	check(dead.Close())
}

// Kafka removes no single letter. All are published again, and then removed up to the end of the start: what dies again
// is behind it. A stop in between redrives some a second time.
func ExampleLetters_redrive() {
	const topic = "retry.dead.billing.orders"
	ctx, config := context.Background(), kafkaretry.Config{
		Brokers: []string{"kafka-1:9092"},
		Group:   "billing",
		Policy:  retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}
	client, err := sarama.NewClient(config.Brokers, sarama.NewConfig())
	check(err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	check(err)
	end, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	check(err)

	app, err := kafkaretry.Connect(config, logger)
	check(err)
	dead, err := kafkaretry.Letters(config, logger)
	check(err)
	for letter, err := range dead.Browse(ctx, topic, letters.Filter{}) { // it does not read on
		check(err)
		again := message.NewMessage(letter.ID, letter.Payload)
		again.Metadata = letter.Metadata
		check(app.Publisher().Publish("retry.return.billing.orders", again))
	}
	check(admin.DeleteRecords(topic, map[int32]int64{0: end}))
	check(errors.Join(dead.Close(), app.Close(), admin.Close()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
