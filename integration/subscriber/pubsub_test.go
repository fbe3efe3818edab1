package subscriber_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

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
	connection := open(t, broker.URL(t))
	s := newSubscriber(connection, config{
		QueueOf:      own.Queue.GenerateName,
		Unmarshal:    own.Marshaler.Unmarshal,
		Concurrency:  concurrency,
		CloseTimeout: time.Second,           // some tests never settle what they received
		LongestNack:  20 * time.Millisecond, // one of them nacks the first message of the queue 300 times
		Declare: func(d *subscriber.Declaration, topic string) error {
			queue, exchange := own.Queue.GenerateName(topic), own.Exchange.GenerateName(topic)
			channel, err := d.Channel()
			if err != nil {
				return err
			}
			return own.TopologyBuilder.BuildTopology(channel, queue, exchange, own, watermill.NopLogger{})
		},
	})
	return publisher, owner{s, connection}
}

// An owner closes the connection with the subscriber.
type owner struct {
	*subscriber.Subscriber
	connection *subscriber.Connection
}

func (o owner) Close() error { return o.connection.Close() }
