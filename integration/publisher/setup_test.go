package publisher_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
)

const soon = 60 * time.Second // much longer than any of these events takes

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A topology is a topic exchange and a queue bound to it with its own name.
type topology struct {
	exchange, queue string
}

func declare(t testing.TB, arguments amqp091.Table) topology {
	t.Helper()
	name := broker.Name(t, "publisher")
	broker.Clean(t, name)
	topology := topology{exchange: name + ".exchange", queue: name + ".queue"}
	require.NoError(t, topology.declare(broker.Channel(t), arguments))
	return topology
}

func (o topology) declare(channel *amqp091.Channel, arguments amqp091.Table) error {
	if arguments == nil {
		arguments = amqp091.Table{"x-queue-type": "classic"}
	}
	if err := o.declareExchange(channel); err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(o.queue, true, false, false, false, arguments); err != nil {
		return err
	}
	return channel.QueueBind(o.queue, o.queue, o.exchange, false, nil)
}

func (o topology) declareExchange(channel *amqp091.Channel) error {
	return channel.ExchangeDeclare(o.exchange, "topic", true, false, false, false, nil)
}

// content empties the queue, and returns how often each message was in it, by UUID.
func (o topology) content(t testing.TB) map[string]int {
	t.Helper()
	channel := broker.Channel(t)
	content := map[string]int{}
	for {
		delivery, ok, err := channel.Get(o.queue, true)
		require.NoError(t, err)
		if !ok {
			return content
		}
		content[delivery.Headers[publisher.UUIDHeader].(string)]++
	}
}

// settings are those of a half: which exchange it publishes to, and how it marshals.
type settings struct {
	publisher.Config
	Exchange string
	Marshal  func(*message.Message) amqp091.Publishing
}

// A half publishes messages over Send.
type half struct {
	*publisher.Connection
	config settings
}

func (o topology) open(t testing.TB, change func(*settings)) half {
	t.Helper()
	s := settings{Exchange: o.exchange}
	if change != nil {
		change(&s)
	}
	return on(connect(t, s.Config), s)
}

func connect(t testing.TB, config publisher.Config) *publisher.Connection {
	t.Helper()
	if config.Wire.URI == "" {
		config.Wire.URI = broker.URL(t)
	}
	config.ConfirmTimeout = time.Hour // no test waits for it, on any machine
	connection, err := publisher.Open(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	return connection
}

func on(connection *publisher.Connection, config settings) half {
	if config.Marshal == nil {
		config.Marshal = marshal
	}
	return half{connection, config}
}

func marshal(msg *message.Message) amqp091.Publishing {
	headers := amqp091.Table{publisher.UUIDHeader: msg.UUID}
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	return amqp091.Publishing{Headers: headers, Body: msg.Payload}
}

func (h half) Publish(topic string, messages ...*message.Message) error {
	all := make([]publisher.Message, len(messages))
	for i, msg := range messages {
		all[i] = publisher.Message{Context: msg.Context(), Exchange: h.config.Exchange, RoutingKey: topic, UUID: msg.UUID,
			Publishing: h.config.Marshal(msg)}
	}
	failures, err := h.Send(all...)
	if err != nil {
		return err
	}
	return errors.Join(failures...)
}

func newMessage(uuid string) *message.Message {
	return message.NewMessage(uuid, []byte("payload of "+uuid))
}

func newMessages(count int) (messages []*message.Message) {
	for i := range count {
		messages = append(messages, newMessage(fmt.Sprint("message-", i)))
	}
	return messages
}

func once(messages []*message.Message) map[string]int {
	content := map[string]int{}
	for _, msg := range messages {
		content[msg.UUID] = 1
	}
	return content
}

// asPublishError asserts the kind of the error, and that the error contains the exchange, the routing key and the
// message's UUID.
func asPublishError(t testing.TB, err, kind error) *failure.Error {
	t.Helper()
	require.ErrorIs(t, err, kind)
	var publishError *failure.Error
	require.ErrorAs(t, err, &publishError)
	require.Contains(t, err.Error(), publishError.Exchange)
	require.Contains(t, err.Error(), publishError.RoutingKey)
	require.NotEmpty(t, publishError.MessageUUID)
	return publishError
}
