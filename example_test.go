package watermillretry_test

import (
	"cmp"
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// bill fails twice for each order.
func bill(msg *message.Message) error {
	if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 2 {
		return errors.New("the bank is down")
	}
	slog.Info("Billed", "order", msg.UUID)
	return nil
}

func Example() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	logger := watermill.NewSlogLogger(slog.Default())
	uri := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")

	// A failed order waits 1s, 5s, 25s, 125s on queues of the broker, then goes to the dead-letter queue orders.dead.
	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig(uri),
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	if err != nil {
		return err
	}
	defer rabbit.Close() // after router.Run has returned

	router := message.NewDefaultRouter(logger)
	rabbit.AddConsumerHandler(router, "billing", "orders", bill)

	go func() {
		<-router.Running() // the queue exists
		order := message.NewMessage("order-1", []byte(`{"ID": "order-1"}`))
		if err := rabbit.Publisher().Publish("orders", order); err != nil {
			logger.Error("Cannot publish", err, nil)
		}
	}()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return router.Run(ctx)
}
