package retry_test

import (
	"context"
	"log"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

func Example_orphans() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: "amqp://guest:guest@localhost:5672/"}, nil)
	check(err)
	defer store.Close()

	summary, err := store.Redrive(ctx, store.Orphans(), letters.Redrive{})
	log.Println(summary, err)
}
