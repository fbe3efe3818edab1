package retry_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// readerTime is the deadline of every event.
const readerTime = 60 * time.Second

// place is a virtual host of its own: all that is declared there belongs to the test.
type place struct {
	name, uri string
	channel   *amqp091.Channel
}

func newPlace(t *testing.T) place {
	t.Helper()
	uri, remove, err := broker.Host(broker.Management(t), broker.URL(t), "reader")
	require.NoError(t, err)
	t.Cleanup(func() { _ = remove() })
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	require.NoError(t, err)
	return place{uri[strings.LastIndex(uri, "/")+1:], uri, channel}
}

// declared returns all queues, exchanges and bindings of the place.
func (p place) declared(t *testing.T) []string {
	t.Helper()
	definitions, err := broker.Management(t).ListVhostDefinitions(p.name)
	require.NoError(t, err)
	objects := []string{}
	for _, queue := range *definitions.Queues {
		objects = append(objects, fmt.Sprintf("queue %s %v", queue.Name, queue.Arguments))
	}
	for _, exchange := range *definitions.Exchanges {
		objects = append(objects, fmt.Sprintf("exchange %s %s %v", exchange.Name, exchange.Type, exchange.Arguments))
	}
	for _, binding := range *definitions.Bindings {
		objects = append(objects, fmt.Sprintf("binding %s %s %s", binding.Source, binding.RoutingKey, binding.Destination))
	}
	slices.Sort(objects)
	return objects
}

func (p place) builder(t *testing.T, prefix string, schedule backoff.Schedule) *config.Builder {
	t.Helper()
	b, err := config.NewBuilder(config.Config{AMQP: amqp.NewDurableQueueConfig(p.uri), Settings: rabbitmq.Settings{Prefix: prefix}, Policy: retry.Policy{Schedule: schedule}})
	require.NoError(t, err)
	return b
}

// reader is the configuration with which the dead letters of the place are read.
func (p place) reader(t *testing.T) amqp.Config {
	t.Helper()
	reader, err := config.DeadLetterSubscriberConfig(amqp.NewDurableQueueConfig(p.uri), "")
	require.NoError(t, err)
	return reader
}

func (p place) subscriber(t *testing.T, reader amqp.Config, log watermill.LoggerAdapter) message.Subscriber {
	t.Helper()
	subscriber, err := amqp.NewSubscriber(reader, log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	return subscriber
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	return broker.Receive(t, from, "a message")
}

// TestReaderOfAMissingQueueIsRefused, and reads after the app has declared the queue.
func TestReaderOfAMissingQueueIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	before := p.declared(t)
	reader := p.subscriber(t, p.reader(t), watermill.NopLogger{})
	_, err := reader.Subscribe(t.Context(), "orders")
	for _, text := range []string{
		`the dead letters of topic "orders": the queue "orders.dead" does not exist`, "declares nothing", "correct the topic or Queue.GenerateName",
		"start the app", "404",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = reader.Subscribe(t.Context(), "orders.dead")
	assert.ErrorContains(t, err, `work queue "orders.dead" has the name of a dead-letter queue: subscribe to the topic of work queue "orders"`)
	_, err = reader.Subscribe(t.Context(), "")
	assert.ErrorContains(t, err, "the work queue has no name")
	group, err := config.DeadLetterSubscriberConfig(amqp.NewDurablePubSubConfig(p.uri, nil), "mailing")
	require.NoError(t, err)
	_, err = p.subscriber(t, group, watermill.NopLogger{}).Subscribe(t.Context(), "orders")
	assert.ErrorContains(t, err, `correct the topic or the group "mailing"`)
	assert.Equal(t, before, p.declared(t), "it has declared nothing")
	require.NoError(t, p.builder(t, "shop.retry", backoff.Constant(time.Second, 1)).Topology("orders").Declare(p.channel))
	_, err = reader.Subscribe(t.Context(), "orders")
	assert.NoError(t, err)
}

// TestReaderOfADeletedQueueReadsOn after the app has declared the queue again.
func TestReaderOfADeletedQueueReadsOn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	orders := p.builder(t, "shop.retry", backoff.Constant(time.Second, 1)).Topology("orders")
	require.NoError(t, orders.Declare(p.channel))
	log := &testapp.Log{}
	letters, err := p.subscriber(t, p.reader(t), log).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	sent := testapp.Orders(1)[0]
	require.NoError(t, p.channel.Publish("", orders.DeadLetterQueue(), false, false, sent))
	next(t, letters).Ack() // it consumes
	_, err = p.channel.QueueDelete(orders.DeadLetterQueue(), false, false, false)
	require.NoError(t, err)
	broker.Eventually(t, readerTime, func() bool { return log.Count(`the queue "orders.dead" does not exist`) > 0 }, "the error is logged")
	assert.NotContains(t, strings.Join(p.declared(t), "\n"), "queue orders.dead")
	require.NoError(t, orders.Declare(p.channel))
	require.NoError(t, p.channel.Publish("", orders.DeadLetterQueue(), false, false, sent))
	next(t, letters).Ack()
}
