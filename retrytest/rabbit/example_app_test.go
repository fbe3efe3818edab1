package rabbit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest/rabbit"
)

// billing is an app: it bills orders. It is made from a configuration, as in production.
type billing struct {
	bankIsBack time.Time
	billed     []string

	afterBilling func() // for tests
	retries      retry.Connection
	stop         func() error
}

func startBilling(own amqp.Config) (*billing, error) {
	b := &billing{bankIsBack: time.Now().Add(20 * time.Second), afterBilling: func() {}}
	retries, err := config.Connect(config.Config{
		AMQP:   own,
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}, // 1s, 5s, 25s, 125s
	}, nil)
	if err != nil {
		return nil, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	retries.AddConsumerHandler(router, "billing", "orders", b.bill)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	b.retries = retries
	b.stop = func() error {
		cancel()
		return errors.Join(<-ended, retries.Close())
	}
	return b, nil
}

func (b *billing) bill(msg *message.Message) error {
	switch {
	case len(msg.Payload) == 0:
		return backoff.Permanent(errors.New("the order has no amount"))
	case time.Now().Before(b.bankIsBack):
		return errors.New("no answer from the bank")
	}
	b.billed = append(b.billed, msg.UUID)
	b.afterBilling()
	return nil
}

func TestOrdersSurviveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := rabbit.New(t) // inside of synctest.Test
		own := amqp.NewDurableQueueConfig(rabbit.URI)
		own.Connection.AmqpConfig = broker.AmqpConfig()
		app, err := startBilling(own)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, app.stop()) })

		require.NoError(t, app.retries.Publisher().Publish("orders", message.NewMessage("order-1", []byte("19.99")),
			message.NewMessage("order-2", nil)))
		time.Sleep(3 * time.Second)
		assert.Len(t, broker.Messages("orders.retry.5s"), 1, "order-1 waits for its second retry")
		broker.Cut() // while it waits
		time.Sleep(time.Minute)
		synctest.Wait()

		assert.Equal(t, []string{"order-1"}, app.billed)
		dead := broker.Messages("orders.dead")
		require.Len(t, dead, 1)
		assert.Equal(t, "order-2", dead[0].Headers["_watermill_message_uuid"])
		assert.Equal(t, "the order has no amount", dead[0].Headers["retry_reason"])
	})
}

// A handler's acknowledgement can be lost: then the order is billed twice, unless the handler prevents it.
func TestALostAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := rabbit.New(t)
		own := amqp.NewDurableQueueConfig(rabbit.URI)
		own.Connection.AmqpConfig = broker.AmqpConfig()
		app, err := startBilling(own)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, app.stop()) })
		app.bankIsBack = time.Now()
		app.afterBilling = sync.OnceFunc(func() { broker.Cut() })

		broker.Publish("", "orders", amqp091.Publishing{Body: []byte("19.99"), MessageId: "order-1"})
		time.Sleep(time.Minute)
		synctest.Wait()

		assert.Len(t, app.billed, 2)
	})
}
