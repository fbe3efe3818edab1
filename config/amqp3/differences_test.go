package amqp3_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// What only v3 has.

func TestNilRoutingKeyGeneratorIsRefused(t *testing.T) {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	app.QueueBind.GenerateRoutingKey = nil
	_, err := amqp3.NewBuilder(amqp3.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}})
	assert.ErrorContains(t, err, "QueueBind.GenerateRoutingKey is nil")
}

// TestPreprocessDeliveryGetsTheFirstDeliveryEveryTime: the app's hook changes headers, and gets the original ones after a retry.
func TestPreprocessDeliveryGetsTheFirstDeliveryEveryTime(t *testing.T) {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	app.Marshaler = amqp.DefaultMarshaler{PreprocessDelivery: func(d amqp091.Delivery) amqp091.Delivery {
		assert.Equal(t, "shop", d.Exchange)
		assert.NotContains(t, d.Headers, "x-death")
		tenant, _ := d.Headers["tenant"].(string)
		for key, value := range d.Headers {
			if _, ok := value.(string); !ok {
				delete(d.Headers, key)
			}
		}
		delete(d.Headers, "tenant")
		d.Headers["seen"] = "seen " + tenant
		return d
	}}
	builder, err := amqp3.NewBuilder(amqp3.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}})
	require.NoError(t, err)
	marshaler := builder.SubscriberConfig().Marshaler
	delivery := configtest.Foreign()
	delivery.Headers["tenant"] = "eu"
	for range 3 {
		msg, err := marshaler.Unmarshal(delivery)
		require.NoError(t, err)
		assert.Equal(t, "seen eu", msg.Metadata["seen"])
		assert.NotContains(t, msg.Metadata, "tenant")
		p, err := marshaler.Marshal(msg)
		require.NoError(t, err)
		assert.Equal(t, "eu", p.Headers["tenant"])
		for key, value := range configtest.TypedHeaders {
			require.Equal(t, value, p.Headers[key], key)
		}
		delivery = configtest.ComeBack(p)
	}
}
