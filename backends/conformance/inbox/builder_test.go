package main

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// Two services with a builder each, whose handlers have the same name and topic, share a table. Each handles a message
// once. It is not parallel: TestKills restarts the broker.
func TestBuildersShareATable(t *testing.T) {
	uri := os.Getenv("AMQP_URL")
	require.NotEmpty(t, uri, "the test needs a RabbitMQ at AMQP_URL")
	topic := "builders" + strings.ToLower(rand.Text()[:8])
	calls := make(chan error, 10)
	var last *app
	for _, service := range []string{"one", "other"} {
		a := newApp(t, "app_builders", inbox.Config{})
		last = a
		backend, err := pubsub.Open("rabbitmq-v2", uri, a.logs)
		require.NoError(t, err)
		names := pubsub.App{Group: service, Prefix: "p" + topic, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}}}
		t.Cleanup(func() { require.NoError(t, backend.(pubsub.Cleaner).Clean(names, []string{topic})) })
		builder, err := config.NewBuilder(config.Config{
			AMQP:   amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(service)),
			Policy: names.Policy, Settings: rabbitmq.Settings{Prefix: names.Prefix},
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, builder.Close()) })
		subscriber, err := amqp.NewSubscriber(builder.SubscriberConfig(), a.logs)
		require.NoError(t, err)
		tiered, err := builder.NewTieredRetry(a.logs)
		require.NoError(t, err)
		observe := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := h(msg)
				calls <- err
				return produced, err
			}
		}
		a.router.AddConsumerHandler("billing", topic, subscriber, func(msg *message.Message) error {
			_, err := inbox.Tx(msg.Context()).Exec("INSERT INTO app_builders_effects VALUES ($1)", msg.UUID)
			return err
		}).AddMiddleware(tiered, observe, a.box.Middleware)
		a.run()
	}
	publisher, err := amqp.NewPublisher(amqp.NewDurablePubSubConfig(uri, nil), last.logs)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	for range 2 {
		require.NoError(t, publisher.Publish(topic, message.NewMessage("1", nil)))
		for range 2 {
			select {
			case err := <-calls:
				require.NoError(t, err)
			case <-time.After(patience):
				require.Fail(t, "a service has not got the message")
			}
		}
		assert.Equal(t, 2, last.count("SELECT count(*) FROM app_builders_effects"))
	}
}
