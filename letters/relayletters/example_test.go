package relayletters_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// Letters of each module of folder backends opens the dead letters of its Pub/Sub.
func ExampleOpen() {
	var publisher message.Publisher // of the backend, as that of the relay
	var reader relayletters.Reader  // of the backend
	ctx := context.Background()

	dead, err := relayletters.Open(relayletters.Config{Publisher: publisher, Reader: reader})
	check(err)
	topic := dead.TopicOf("billing", "orders") // retry.dead.billing.orders
	summary, err := dead.Redrive(ctx, topic, letters.Redrive{Rate: 50, MaxRedead: 0.05})
	fmt.Println(summary) // also with an error
	check(err)
	check(dead.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
