package publisher_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// marshalWith returns a Marshal that changes the publishing of a message.
func marshalWith(change func(*message.Message, *amqp091.Publishing)) func(*message.Message) (amqp091.Publishing, error) {
	return func(msg *message.Message) (amqp091.Publishing, error) {
		p := amqp091.Publishing{Headers: amqp091.Table{publisher.UUIDHeader: msg.UUID}, Body: msg.Payload}
		change(msg, &p)
		return p, nil
	}
}

// closing is the prefix of the UUIDs of messages that close the channel.
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
		c.Marshal = marshalWith(func(msg *message.Message, p *amqp091.Publishing) {
			if strings.HasPrefix(msg.UUID, closing) {
				p.UserId = "another"
			}
		})
	}
}

func TestOnlyTheMessageThatClosesTheChannelIsRefused(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	p := topology.open(t, func(c *settings) { closesChannels(t)(c); c.MaxInFlight = 2048 })
	good := newMessages(1000)
	var group sync.WaitGroup
	for i, msg := range good {
		if i == 500 {
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

// A client of amqp091-go loses its connection when it receives headers that are nested one level deeper.
func TestNestingLimitOfHeaders(t *testing.T) {
	t.Parallel()
	const levels = 32
	nested := func(levels int, array bool) (value any) {
		for range levels {
			switch {
			case array:
				value = []any{value}
			default:
				value = amqp091.Table{"deeper": value}
			}
		}
		return value
	}
	for name, array := range map[string]bool{"tables": false, "arrays": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topology := declare(t, nil)
			p := topology.open(t, func(c *settings) {
				c.Marshal = marshalWith(func(msg *message.Message, p *amqp091.Publishing) {
					p.Headers["nested"] = nested(map[string]int{"deepest": levels, "too deep": levels + 1}[msg.UUID], array)
				})
			})
			err := p.Publish(topology.queue, newMessage("too deep"))
			asPublishError(t, err, publish.ErrRefused)
			require.Contains(t, err.Error(), "deeper than 32 levels")
			require.NoError(t, p.Publish(topology.queue, newMessage("deepest")))
			delivery, ok, err := broker.Channel(t).Get(topology.queue, true)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, nested(levels, array), delivery.Headers["nested"])

			channel := broker.Channel(t)
			require.NoError(t, channel.Publish("", topology.queue, true, false, amqp091.Publishing{
				Headers: amqp091.Table{"nested": nested(levels+1, array)},
			}))
			broker.Eventually(t, soon, func() bool {
				queue, err := channel.QueueDeclarePassive(topology.queue, true, false, false, false, nil)
				return err == nil && queue.Messages == 1
			}, "the message is in the queue")
			_, _, err = channel.Get(topology.queue, true)
			require.Error(t, err, "amqp091-go reads more levels than 32")
		})
	}
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
	require.Eventually(t, func() bool { // one of them is the shared one
		for line := range strings.Lines(broker.Ctl(t, "list_connections", "client_properties", "channels", "-q")) {
			if strings.Contains(line, topology.queue) {
				return strings.HasSuffix(line, "\t1\n")
			}
		}
		return false
	}, 20*time.Second, 100*time.Millisecond, "no channel of these messages stays open")
	content := topology.content(t)
	for i := range messages {
		assert.Equal(t, 1-i%2, content[fmt.Sprint(i)], i)
		assert.Equal(t, 1, content[fmt.Sprint("other ", i)], i)
	}
}

// The bound is that of AMQP. The broker accepts 8 bytes more, the overhead of a frame. It closes the connection for 9 bytes more.
func TestHeadersUpToFrameMax(t *testing.T) {
	t.Parallel()
	const frameMax, id = 8192, 1 + len(publisher.IDHeader) + 1 + 4 + 8
	topology := declare(t, nil)
	var excesses []int
	p := topology.open(t, func(c *settings) {
		c.Wire.AMQP = &amqp091.Config{FrameSize: frameMax}
		c.Shrink = func(p *amqp091.Publishing, excess int) {
			excesses = append(excesses, excess)
			if _, may := p.Headers["shrink"]; may {
				filler := p.Headers["filler"].(string)
				p.Headers["filler"] = filler[:len(filler)-excess]
			}
		}
	})
	send := func(filler int, shrink bool) error {
		msg := newMessage("large")
		msg.Metadata.Set("filler", strings.Repeat("x", filler))
		if shrink {
			msg.Metadata.Set("shrink", "")
		}
		return p.Publish(topology.queue, msg)
	}
	err := send(frameMax, false)
	asPublishError(t, err, publish.ErrRefused)
	assert.Contains(t, err.Error(), fmt.Sprint(frameMax))
	require.Len(t, excesses, 1)
	largest := frameMax - excesses[0]

	require.NoError(t, send(largest, false), "the largest allowed")
	require.NoError(t, send(largest+1, false), "without the header of the id")
	require.NoError(t, send(largest+id, false), "without the header of the id")
	require.ErrorIs(t, send(largest+id+1, false), publish.ErrRefused)
	require.NoError(t, send(frameMax, true), "shrunk to the largest allowed")
	require.Equal(t, map[string]int{"large": 4}, topology.content(t))

	const tolerated = 8
	connection, err := amqp091.DialConfig(broker.URL(t), amqp091.Config{FrameSize: frameMax})
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	closed := connection.NotifyClose(make(chan *amqp091.Error, 1))
	// It fails where the broker closes the connection before the last frame is written.
	_ = channel.Publish("", topology.queue, true, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent,
		Headers: amqp091.Table{
			"filler": strings.Repeat("x", largest+tolerated+1), publisher.UUIDHeader: "large", publisher.IDHeader: "12345678",
		},
		Body: []byte("payload of large"),
	})
	select {
	case err := <-closed:
		require.NotNil(t, err)
	case <-time.After(soon):
		t.Fatal("the broker accepts headers that are more than 8 bytes too large")
	}
}
