package config_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestReaderFaultsAtOnce(t *testing.T) {
	var none amqp.Config
	none.Consume.NoRequeueOnNack = true
	_, err := config.DeadLetterSubscriberConfig(none, "")
	for _, text := range []string{
		"AMQP.Connection.AmqpURI is empty", "AMQP.Marshaler is nil", "AMQP.Exchange.GenerateName is nil", "AMQP.Queue.GenerateName is nil",
		"NoRequeueOnNack is true",
	} {
		assert.ErrorContains(t, err, text)
	}
	for _, address := range addresses {
		app := amqp.NewDurableQueueConfig(address)
		_, err := config.DeadLetterSubscriberConfig(app, "")
		assert.ErrorContains(t, err, "AmqpURI cannot be read", address)
		assert.NotContains(t, err.Error(), "ary", address)
	}
	_, err = config.DeadLetterSubscriberConfig(amqp.NewNonDurableQueueConfig(uri), "")
	assert.NoError(t, err, "an app may have such a queue with Leave")
}

// TestReaderOfAGroup: the group names the queue, whatever Queue.GenerateName is.
func TestReaderOfAGroup(t *testing.T) {
	for _, own := range []string{"", "billing"} {
		app := pubSub(uri, own)
		if own == "" {
			app.Queue.GenerateName = nil
			_, err := config.DeadLetterSubscriberConfig(app, "")
			assert.ErrorContains(t, err, "AMQP.Queue.GenerateName is nil, and there is no group: give the Group of the handler")
			assert.NotContains(t, err.Error(), "\n", "one fault")
		}
		reader, err := config.DeadLetterSubscriberConfig(app, "shipping")
		require.NoError(t, err)
		assert.Equal(t, "orders_shipping.dead", reader.Queue.GenerateName("orders"))
	}
}

// TestReaderNeedsOnlyTheApp: a reader without a builder reads the dead letters of every prefix as their original messages, those of
// the middleware and those of the broker. In a message that was sent to the queue by its name, headers with the library's names
// are not the library's.
func TestReaderNeedsOnlyTheApp(t *testing.T) {
	app := pubSub(uri, "billing")
	app.Consume.Exclusive = true
	app.Marshaler = propertyReader{stock(nil)}
	letters, err := config.DeadLetterSubscriberConfig(app, "")
	require.NoError(t, err)
	assert.Equal(t, "orders_billing.dead", letters.Queue.GenerateName("orders"))
	assert.Empty(t, letters.Exchange.GenerateName("orders"))
	assert.False(t, letters.Consume.Exclusive)
	assert.True(t, app.Consume.Exclusive, "the app's own is not changed")

	first := amqp091.Table{exchangeHeader: "shop", routingKeyHeader: "eu", userIDHeader: "shop-user"}
	for exchange, key := range map[string]string{"retry": "dead.orders_billing", "shop.retry": "dead.orders_billing", "": "orders_billing.dead"} {
		for _, byBroker := range []bool{false, true} {
			headers := amqp091.Table{recordkey.Failures: "2", recordkey.Topic: "orders", recordkey.DeadReason: "exhausted"}
			for name, value := range first {
				headers[name] = value
			}
			want := retry.DeadReason("exhausted")
			if byBroker {
				headers["x-death"] = []any{amqp091.Table{"reason": "delivery_limit", "queue": "orders_billing"}}
				want = "delivery_limit"
			}
			msg, err := letters.Marshaler.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: exchange, RoutingKey: key, Headers: headers})
			require.NoError(t, err)
			record, known := retry.ReadRecord(msg.Metadata)
			require.True(t, known)
			assert.Equal(t, want, record.DeadReason)
			if exchange == "" {
				assert.Equal(t, "/orders_billing.dead/", msg.Metadata["from"])
			} else {
				assert.Equal(t, "shop/eu/shop-user", msg.Metadata["from"])
			}
			assert.NotContains(t, msg.Metadata, exchangeHeader)
		}
	}
}
