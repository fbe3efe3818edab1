package hostile_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// full returns a failed message whose own headers take this size of a frame. With a long failure record its copy fills the frame.
func full(size int) *message.Message {
	filler := framed(size).Headers["h"].(string)
	msg := message.NewMessage(strconv.Itoa(size), []byte(strconv.Itoa(size)))
	msg.Metadata["h"] = filler[:len(filler)-(1+len("_watermill_message_uuid")+1+4+len(msg.UUID))]
	return msg
}

// errFull makes the longest reason.
var errFull = errors.New(strings.Repeat("r", 1024))

// sizes are the sizes of messages whose copies nearly fill the frame, up to the largest one that leaves room.
func sizes(most int) (all []int) {
	for size := 126_500; size < most-40; size += 61 {
		all = append(all, size)
	}
	for size := most - 40; size <= most; size++ {
		all = append(all, size)
	}
	return all
}

// requeue gives each of n messages of a queue back twice, by nack and by reject, which RabbitMQ 4.3 counts apart. It returns the
// messages, which are not settled, and their channel.
func requeue(t *testing.T, queue string, n int) (*amqp091.Channel, map[string]amqp091.Delivery) {
	t.Helper()
	channel := broker.Channel(t)
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	seen, last := map[string]int{}, map[string]amqp091.Delivery{}
	for len(last) < n {
		d := broker.Receive(t, deliveries, "a message for the reader")
		require.NotNil(t, d.Acknowledger, "the reader was disconnected")
		identity := string(d.Body)
		seen[identity]++
		switch seen[identity] {
		case 1:
			require.NoError(t, d.Nack(false, true))
		case 2:
			require.NoError(t, d.Reject(true))
		default:
			last[identity] = d
		}
	}
	return channel, last
}

// requeued requeues the dead letters of a queue, which are these messages, and ends. It is one ack: a quorum queue may drop many
// that are under way when their channel is closed.
func requeued(t *testing.T, queue string, sent map[string]*message.Message) map[string]amqp091.Delivery {
	t.Helper()
	channel, got := requeue(t, queue+".dead", len(sent))
	require.Equal(t, keys(sent), keys(got))
	last := uint64(0)
	for identity, letter := range got {
		assert.True(t, sent[identity].Metadata["h"] == letter.Headers["h"], "%s: its own header", identity)
		last = max(last, letter.DeliveryTag)
	}
	require.NoError(t, channel.Ack(last, true))
	require.NoError(t, channel.Close())
	testapp.Eventually(t, func() bool { return testapp.Depth(t, queue+".dead") == 0 }, "%s is empty", queue)
	return got
}

// TestDeadLetterThatFillsTheFrameCanBeRequeued: the broker adds its counts of deliveries. Without room for them, every reader of the
// dead-letter queue would be disconnected.
func TestDeadLetterThatFillsTheFrameCanBeRequeued(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	a.Declare(queue)
	const counts = 52 // what is left for x-delivery-count and x-acquired-count
	sent := map[string]*message.Message{}
	for _, size := range sizes(frameMax - counts) {
		msg := full(size)
		sent[msg.UUID] = msg
		require.NoError(t, a.Fail(queue, msg, backoff.Permanent(errFull)), size)
	}
	got := requeued(t, queue, sent)
	assert.Len(t, got["126500"].Headers[recordkey.Reason], 1024, "the record is complete if it fits")
	assert.NotContains(t, got[strconv.Itoa(frameMax-counts)].Headers, recordkey.Reason, "the record is shortened if it does not fit")
}

// TestCopyThatFillsTheFrameComesBack from its tier, is requeued, is dead-lettered by the broker, and is requeued there, with names
// as short and as long as they can be.
func TestCopyThatFillsTheFrameComesBack(t *testing.T) {
	t.Parallel()
	for name, length := range map[string]int{"short names": 0, "long names": 255 - len(".100ms") - 11} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.NewParts(t)
			queue := a.Queue("o")
			if length > 0 {
				queue += strings.Repeat("q", length-len(queue))
			}
			a.Declare(queue)
			room := 512 + 8*(len(a.Name)+len("100ms.")+len(queue))
			sent := map[string]*message.Message{}
			for i := range 20 {
				// its record is shortened, and keeps the topic: the copy fills the frame
				msg := full(frameMax - room - 100 - len(queue) - 40*i)
				sent[msg.UUID] = msg
				require.NoError(t, a.Fail(queue, msg, errFull))
			}
			_, back := requeue(t, queue, len(sent))
			for _, delivery := range back {
				require.NoError(t, delivery.Nack(false, false)) // the broker dead-letters it
			}
			for identity, letter := range requeued(t, queue, sent) {
				assert.Contains(t, letter.Headers, "x-death", identity)
			}
		})
	}
}
