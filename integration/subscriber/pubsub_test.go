// Package subscriber_test runs Watermill's own tests of a Pub/Sub on a broker.
package subscriber_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPubSub runs Watermill's own tests, with the features that watermill-amqp claims. The publisher is watermill-amqp's.
func TestPubSub(t *testing.T) {
	for _, concurrency := range []int{1, 16} {
		features := tests.Features{
			GuaranteedOrder:                     concurrency == 1,
			GuaranteedOrderWithSingleSubscriber: concurrency == 1,
			Persistent:                          true,
		}
		t.Run(fmt.Sprint("queue, concurrency ", concurrency), func(t *testing.T) {
			tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return pubSub(t, amqp.NewDurableQueueConfig(broker.URL(t)), concurrency)
			}, nil)
		})
		features.ConsumerGroups = true
		t.Run(fmt.Sprint("pub/sub, concurrency ", concurrency), func(t *testing.T) {
			group := func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
				return pubSub(t, amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix(name)), concurrency)
			}
			tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "test") }, group)
		})
	}
}

func pubSub(t *testing.T, own amqp.Config, concurrency int) (message.Publisher, message.Subscriber) {
	t.Helper()
	own.Publish.ChannelPoolSize = 25
	publisher, err := amqp.NewPublisher(own, watermill.NopLogger{})
	require.NoError(t, err)
	connection, err := subscriber.Open(wire.Config{URI: broker.URL(t), ReconnectInitial: 20 * time.Millisecond, ReconnectMax: time.Second}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	return publisher, owner{subscriber.NewSubscriber(connection, handler{own}, subscriber.Config{
		Concurrency:  concurrency,
		CloseTimeout: time.Second,           // some tests never settle what they received
		LongestNack:  20 * time.Millisecond, // one of them nacks the first message of the queue 300 times
	}, watermill.NopLogger{}), connection}
}

// An owner closes the connection with the subscriber.
type owner struct {
	*subscriber.Subscriber
	connection *subscriber.Connection
}

func (o owner) Close() error { return o.connection.Close() }

// A handler declares and reads as watermill-amqp's subscriber.
type handler struct{ own amqp.Config }

func (h handler) QueueOf(topic string) (string, error) { return h.own.Queue.GenerateName(topic), nil }

func (h handler) Declare(d *subscriber.Declaration, topic string) error {
	channel, err := d.Channel()
	if err != nil {
		return err
	}
	return h.own.TopologyBuilder.BuildTopology(channel, h.own.Queue.GenerateName(topic), h.own.Exchange.GenerateName(topic),
		h.own, watermill.NopLogger{})
}

func (h handler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return h.own.Marshaler.Unmarshal(d)
}

func (handler) Bind(*subscriber.Declaration, string) error             { return nil }
func (handler) MayBeQuorum(string) bool                                { return true }
func (handler) Nacked(*message.Message, amqp091.Delivery) (again bool) { return false }
