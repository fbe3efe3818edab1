package amqp3_test

import (
	"fmt"
	"reflect"
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

// The tests of package config are not repeated: these are for what this package has of its own.

const uri = "amqp://shop:secret@localhost:5672/"

func TestEveryFieldIsDecided(t *testing.T) {
	configtest.FieldsAreDecided(t, reflect.TypeFor[amqp.Config]())
}

func TestFaultsAreReported(t *testing.T) {
	app := amqp.NewDurableQueueConfig(uri)
	app.Consume.NoRequeueOnNack = true
	config := amqp3.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Schedule{0}}}
	config.QueueType = "lazy"
	_, built := amqp3.NewBuilder(config)
	_, connected := amqp3.Connect(config, nil)
	for _, err := range []error{built, connected, config.Validate()} {
		for _, text := range []string{"AMQP.Consume.NoRequeueOnNack is true", "retry 1: delay 0s", `QueueType is "lazy"`} {
			assert.ErrorContains(t, err, text)
		}
	}
	_, err := amqp3.DeadLetterSubscriberConfig(app, "")
	assert.ErrorContains(t, err, "AMQP.Consume.NoRequeueOnNack is true")
}

// TestCopies: an app that writes into a configuration that it gets, or into its own, changes no other.
func TestCopies(t *testing.T) {
	app := amqp.NewDurableQueueConfig(uri)
	app.Queue.Arguments, app.Consume.Exclusive = amqp091.Table{"x-app": "own"}, true
	app.Connection.Reconnect = &amqp.ReconnectConfig{BackoffMaxInterval: time.Minute}
	builder, err := amqp3.NewBuilder(amqp3.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}})
	require.NoError(t, err)
	change := func(c amqp.Config) {
		c.Queue.Arguments["x-app"], c.Connection.Reconnect.BackoffMaxInterval = "changed", 0
	}
	own := amqp.NewDurableQueueConfig(uri)
	own.Queue.Arguments, own.Consume.Exclusive = amqp091.Table{"x-app": "own"}, true
	own.Connection.Reconnect = &amqp.ReconnectConfig{BackoffMaxInterval: time.Minute}
	change(app)
	for range 2 {
		subscriber := builder.SubscriberConfig()
		reader, err := amqp3.DeadLetterSubscriberConfig(own, "")
		require.NoError(t, err)
		for _, c := range []amqp.Config{subscriber, reader} {
			assert.Equal(t, "own", c.Queue.Arguments["x-app"])
			assert.Equal(t, time.Minute, c.Connection.Reconnect.BackoffMaxInterval)
			change(c)
		}
		assert.Equal(t, "own", builder.Topology("orders").WorkQueue.Arguments["x-app"])
		assert.Equal(t, "orders orders", subscriber.Queue.GenerateName("orders")+" "+builder.Topology("orders").WorkQueue.Name)
		assert.Equal(t, "orders.dead", reader.Queue.GenerateName("orders"))
		assert.False(t, reader.Consume.Exclusive)
	}
}

func TestPasswordIsNotPrinted(t *testing.T) {
	config := amqp3.Config{AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}}
	config.Management = "http://shop:secret@localhost:15672"
	builder, err := amqp3.NewBuilder(config)
	require.NoError(t, err)
	for _, printed := range []any{config, &config, builder, *builder, struct{ B *amqp3.Builder }{builder}, struct{ b *amqp3.Builder }{builder}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			assert.NotContains(t, fmt.Sprintf(verb, printed), "secret", "%T", printed)
		}
	}
	assert.Contains(t, fmt.Sprint(config), "shop:xxxxx@localhost:5672")
}

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
