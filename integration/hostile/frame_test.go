package hostile_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// frameMax is the broker's limit. amqp091-go reads no larger frame.
const frameMax = 131_072

// framed returns a message whose header frame has this size.
func framed(size int) amqp091.Publishing {
	const (
		frame, content, deliveryMode, table = 8, 14, 1, 4
		key, value                          = 1 + 1, 1 + 4
	)
	filler := strings.Repeat("x", size-frame-content-deliveryMode-table-key-value)
	return amqp091.Publishing{Body: []byte(strconv.Itoa(size)), Headers: amqp091.Table{"h": filler}}
}

// TestHeadersNearTheFrameLimit: the record is shortened, never the message's own headers. A message is dead-lettered at
// once if the headers that the broker adds on a tier would not fit into a frame. That works up to the last byte of a
// frame.
func TestHeadersNearTheFrameLimit(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	sent := map[string]amqp091.Publishing{}
	for _, size := range []int{100_000, 128_000, 129_000, 129_500} {
		sent[strconv.Itoa(size)] = framed(size)
	}
	for size := 129_550; size < frameMax; size += 61 {
		sent[strconv.Itoa(size)] = framed(size)
	}
	for size := frameMax - 40; size <= frameMax; size++ {
		sent[strconv.Itoa(size)] = framed(size)
	}
	calls := testapp.NewLedger()
	a.Handle(queue, 4, func(msg *message.Message) error { calls.Add(string(msg.Payload)); return errDown })
	a.Run()
	for _, p := range sent {
		testapp.Send(t, "", queue, p)
	}
	got := letters(t, queue, len(sent))
	assert.Equal(t, keys(sent), keys(got))
	tooLarge := 0
	for identity, letter := range got {
		require.True(t, sent[identity].Headers["h"] == own(letter)["h"] && len(own(letter)) == 1, identity)
		size, err := strconv.Atoi(identity)
		require.NoError(t, err)
		switch calls.Counts()[identity] {
		case 3:
			require.Less(t, size, 130_500, "the broker's own headers would not fit")
			assert.Equal(t, "3", letter.Headers[recordkey.Failures], identity)
		case 1:
			tooLarge++
			require.Greater(t, size, 129_500, "the broker's own headers would fit")
			if size < frameMax-100 {
				assert.Equal(t, string(retry.DeadReasonTooLarge), letter.Headers[recordkey.DeadReason], identity)
			}
		default:
			assert.Fail(t, "the handler was called neither 3 times nor once", "%s: %d times", identity, calls.Counts()[identity])
		}
	}
	assert.NotZero(t, tooLarge)
	assert.Contains(t, got["128000"].Headers, recordkey.Reason, "the record is complete if it fits")
	assert.NotContains(t, got["130770"].Headers, "reason_poisoned", "the record is shortened if it does not fit")
	assert.Equal(t, own(got[strconv.Itoa(frameMax)]), got[strconv.Itoa(frameMax)].Headers,
		"a message that fills the frame has no record")
	empty(t, queue)
	assert.Zero(t, a.Log.Count("reconnecting"), "no connection was closed")
	assert.Zero(t, a.Log.Count("holding the message"), "no copy was held")
}

// TestThousandsOfHeaders: amqp091-go reads at most 8192 headers, including the broker's own.
func TestThousandsOfHeaders(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	sent := map[string]amqp091.Publishing{}
	for _, n := range []int{8000, 8160, 8170, 8173, 8174, 8180, 8189, 8190, 8191, 8192} {
		headers := amqp091.Table{}
		for i := range n {
			headers[strconv.Itoa(i)] = int8(1)
		}
		sent[strconv.Itoa(n)] = amqp091.Publishing{Body: []byte(strconv.Itoa(n)), Headers: headers}
	}
	calls := testapp.NewLedger()
	a.Handle(queue, 2, func(msg *message.Message) error { calls.Add(string(msg.Payload)); return errDown })
	a.Run()
	for _, p := range sent {
		testapp.Send(t, "", queue, p)
	}
	got := letters(t, queue, len(sent))
	assert.Equal(t, keys(sent), keys(got))
	for identity, letter := range got {
		// The counts of deliveries would not fit: no Go client could read the letter again.
		if identity == "8191" || identity == "8192" {
			assert.Contains(t, letter.Headers[recordkey.LeftOff], "more: ", identity)
			assert.Equal(t, "too_large", letter.Headers[recordkey.DeadReason], identity)
			assert.Equal(t, errDown.Error(), letter.Headers[recordkey.Reason], identity)
			continue
		}
		assert.Equal(t, sent[identity].Headers, own(letter), identity)
	}
	assert.Equal(t, 3, calls.Counts()["8160"], "the broker's own headers fit")
	assert.Equal(t, 1, calls.Counts()["8192"], "the broker's own headers do not fit")
	empty(t, queue)
	assert.Zero(t, a.Log.Count("reconnecting"), "no connection was closed")
	assert.Zero(t, a.Log.Count("holding the message"), "no copy was held")
}
