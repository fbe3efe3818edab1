package publisher_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// closing is the UUID of a message that closes the channel.
const closing = "closing"

// A hiddenUser logs in as the user of the address, whose name the publisher does not know, as with certificates.
type hiddenUser struct{ amqp091.Authentication }

// closesChannels makes messages with another user-id than that of the connection: the broker closes the channel. The
// publisher cannot find that before it publishes the message.
func closesChannels(t *testing.T) func(*settings) {
	t.Helper()
	uri, err := amqp091.ParseURI(broker.URL(t))
	require.NoError(t, err)
	return func(c *settings) {
		c.Wire.AMQP = &amqp091.Config{SASL: []amqp091.Authentication{hiddenUser{uri.PlainAuth()}}}
		c.Marshal = func(msg *message.Message) amqp091.Publishing {
			p := marshal(msg)
			if msg.UUID == closing {
				p.UserId = "another"
			}
			return p
		}
	}
}

func TestOnlyTheMessageThatClosesTheChannelIsRefused(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	p := topology.open(t, func(c *settings) { closesChannels(t)(c); c.MaxInFlight = 2048 })
	good := newMessages(200)
	var group sync.WaitGroup
	for i, msg := range good {
		if i == 100 {
			group.Go(func() {
				err := p.Publish(topology.queue, newMessage(closing))
				asPublishError(t, err, publish.ErrRefused)
				var cause *amqp091.Error
				require.ErrorAs(t, err, &cause)
				assert.Equal(t, amqp091.PreconditionFailed, cause.Code)
			})
		}
		group.Go(func() { assert.NoError(t, p.Publish(topology.queue, msg)) })
	}
	group.Wait()
	content := topology.content(t)
	assert.Zero(t, content[closing])
	for _, msg := range good {
		// Only a message that was in flight when the channel was closed may be in the queue twice.
		assert.Contains(t, []int{1, 2}, content[msg.UUID], msg.UUID)
	}
	assert.Len(t, content, len(good))
}

// TestMessagesWithoutRoomForTheID: the publisher still matches each return and each nack with its message. The channel that
// such a message has alone is closed once its outcome is known.
func TestMessagesWithoutRoomForTheID(t *testing.T) {
	t.Parallel()
	const frameMax = 8192
	topology, small := declare(t, nil), declare(t, amqp091.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	p := topology.open(t, func(c *settings) {
		c.Wire.AMQP = &amqp091.Config{FrameSize: frameMax, Properties: amqp091.Table{"connection_name": topology.queue}}
		c.Exchange = ""
	})
	full := func(identity string) *message.Message { // the header with the id needs one byte more than is free
		msg := newMessage(identity)
		const frame, content, deliveryMode, table, key, value = 8, 14, 1, 4, 1 + 1, 1 + 4
		uuid := 1 + len(publisher.UUIDHeader) + value + len(identity)
		msg.Metadata = message.Metadata{"h": strings.Repeat("x", frameMax-frame-content-deliveryMode-table-uuid-key-value)}
		return msg
	}
	const messages = 64
	var group sync.WaitGroup
	for i := range messages {
		group.Go(func() {
			identity := fmt.Sprint(i)
			if i%2 == 0 {
				assert.NoError(t, p.Publish(topology.queue, full(identity)), identity)
				return
			}
			assert.ErrorIs(t, p.Publish("nowhere", full(identity)), publish.ErrUnroutable, identity)
		})
		group.Go(func() { assert.NoError(t, p.Publish(topology.queue, newMessage(fmt.Sprint("other ", i)))) })
	}
	group.Wait()
	require.NoError(t, p.Publish(small.queue, full("fills")))
	require.ErrorIs(t, p.Publish(small.queue, full("nacked")), publish.ErrNacked)
	broker.Eventually(t, soon, func() bool { // one of them is the shared one
		for line := range strings.Lines(broker.Ctl(t, "list_connections", "client_properties", "channels", "-q")) {
			if strings.Contains(line, topology.queue) {
				return strings.HasSuffix(line, "\t1\n")
			}
		}
		return false
	}, "no channel of these messages stays open")
	content := topology.content(t)
	for i := range messages {
		assert.Equal(t, 1-i%2, content[fmt.Sprint(i)], i)
		assert.Equal(t, 1, content[fmt.Sprint("other ", i)], i)
	}
}
