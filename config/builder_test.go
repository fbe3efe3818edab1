package config_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
)

const uri = "amqp://guest:guest@localhost:5672/"

func builderOf(t testing.TB, change ...func(*config.BuilderConfig)) *config.Builder {
	t.Helper()
	c := config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: backoff.Schedule{time.Second, 5 * time.Minute, time.Second}}
	for _, f := range change {
		f(&c)
	}
	builder, err := config.NewBuilder(c)
	require.NoError(t, err)
	return builder
}

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	app := amqp.NewDurableQueueConfig(uri)
	app.Marshaler = nil
	app.Consume.NoRequeueOnNack = true
	app.Publish.Transactional = true
	app.Queue.Exclusive, app.Queue.AutoDelete, app.Queue.Durable = true, true, false
	app.Queue.Arguments = amqp091.Table{"x-queue-type": "stream"}
	_, err := config.NewBuilder(config.BuilderConfig{
		AMQP: app, Prefix: "a.*", QueueType: "lazy", WorkQueue: "maybe",
		Schedule: backoff.Schedule{0, 2 * backoff.MaxDelay},
	})
	require.Error(t, err)
	for _, text := range []string{
		"Marshaler", "NoRequeueOnNack", "Transactional", "Exclusive", "AutoDelete", "stream",
		`Prefix is "a.*"`, `QueueType is "lazy"`, `WorkQueue is "maybe"`, "Schedule", "retry 1", "retry 2",
	} {
		assert.ErrorContains(t, err, text)
	}

	_, err = config.NewBuilder(config.BuilderConfig{})
	assert.ErrorContains(t, err, "AmqpURI is empty")
	assert.ErrorContains(t, err, "Schedule")
}

func TestRefusals(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*config.BuilderConfig)
		want   string
	}{
		"queue that cannot be protected": {func(c *config.BuilderConfig) { c.AMQP = amqp.NewNonDurableQueueConfig(uri) }, "Durable is false"},
		"prefix of the broker's":         {func(c *config.BuilderConfig) { c.Prefix = "amq.retry" }, "amq."},
		"prefix too long":                {func(c *config.BuilderConfig) { c.Prefix = strings.Repeat("p", 250) }, "at most 247"},
		"pattern in the prefix":          {func(c *config.BuilderConfig) { c.Prefix = "#" }, "patterns"},
		"no such scheme":                 {func(c *config.BuilderConfig) { c.AMQP.Connection.AmqpURI = "http://localhost" }, "AmqpURI cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: backoff.Constant(time.Second, 1)}
			row.change(&c)
			_, err := config.NewBuilder(c)
			assert.ErrorContains(t, err, row.want)
		})
	}
	t.Run("a queue that does not survive, left alone", func(t *testing.T) {
		_, err := config.NewBuilder(config.BuilderConfig{
			AMQP: amqp.NewNonDurableQueueConfig(uri), Schedule: backoff.Constant(time.Second, 1), WorkQueue: config.Leave,
		})
		assert.NoError(t, err)
	})
}

func TestPasswordIsNeverInAnError(t *testing.T) {
	for _, uri := range []string{
		"amqp://user:canary@localhost:port/", "amqp://user:canary@local host/", "amqp://user:canary%@localhost/", "http://user:canary@localhost/",
		"amqp://user:can/ary@localhost/", "amqp://user:%zcanary@localhost/", "amqp://user:1#canary@localhost/",
	} {
		_, err := config.NewBuilder(config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: backoff.Constant(time.Second, 1)})
		require.Error(t, err, uri)
		assert.NotContains(t, err.Error(), "ary", uri)
	}
}

func TestTheAppsConfigIsNeverChanged(t *testing.T) {
	table := func() amqp091.Table { return amqp091.Table{"x-app": "own"} }
	app := amqp.NewDurableQueueConfig(uri)
	app.Queue.Arguments, app.Exchange.Arguments, app.QueueBind.Arguments, app.Consume.Arguments = table(), table(), table(), table()
	app.Connection.TLSConfig = &tls.Config{ServerName: "own"}
	app.Connection.AmqpConfig = &amqp091.Config{Properties: table()}
	app.Connection.Reconnect = amqp.DefaultReconnectConfig()
	builder := builderOf(t, func(c *config.BuilderConfig) { c.AMQP = app })

	for range 2 {
		theirs := builder.SubscriberConfig()
		for _, arguments := range []amqp091.Table{
			theirs.Queue.Arguments, theirs.Exchange.Arguments, theirs.QueueBind.Arguments, theirs.Consume.Arguments, theirs.Connection.AmqpConfig.Properties,
		} {
			assert.Equal(t, table(), arguments, "neither the app's nor another copy")
			arguments["x-app"] = "changed"
		}
		assert.Equal(t, "own", theirs.Connection.TLSConfig.ServerName)
		theirs.Connection.TLSConfig.ServerName = "changed"
		assert.Equal(t, 60*time.Second, theirs.Connection.Reconnect.BackoffMaxInterval)
		theirs.Connection.Reconnect.BackoffMaxInterval = 0
	}
	builder.Topology("orders").WorkQueue.Arguments["x-app"] = "changed"
	assert.Equal(t, table(), app.Queue.Arguments)
	assert.Equal(t, table(), app.Connection.AmqpConfig.Properties)
	assert.Equal(t, "own", app.Connection.TLSConfig.ServerName)
}

func TestTopicsAreRoutingKeysOfTheQueue(t *testing.T) {
	builder := builderOf(t, func(c *config.BuilderConfig) {
		c.AMQP = amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
	})
	retry := builder.TieredRetryConfig(nil)
	topic, err := retry.GenerateRetryTopic(middleware.RetryTopicParams{Topic: "orders", Tier: backoff.Tier(1500 * time.Millisecond)})
	require.NoError(t, err)
	assert.Equal(t, "1500ms.orders_billing", topic)
	topic, err = retry.GenerateDeadLetterTopic(middleware.DeadLetterTopicParams{Topic: "orders"})
	require.NoError(t, err)
	assert.Equal(t, "dead.orders_billing", topic)
}
