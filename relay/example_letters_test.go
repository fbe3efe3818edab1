package relay_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/relay"
)

// The folder backends has the LetterTopics of PostgreSQL, NATS JetStream, Redis Streams and Kafka.
func ExampleNewLetters() {
	var publisher message.Publisher // of the backend, as that of the relay
	var topics relay.LetterTopics   // of the backend
	ctx := context.Background()

	dead, err := relay.NewLetters(relay.LettersConfig{Publisher: publisher, Topics: topics})
	check(err)
	topic, err := dead.TopicOf("billing") // retry.dead.billing
	check(err)
	summary, err := dead.Redrive(ctx, topic, letters.Redrive{Rate: 50, MaxRedead: 0.05})
	fmt.Println(summary) // also with an error
	check(err)
	check(dead.Close())
}
