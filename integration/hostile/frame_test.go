package hostile_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/middleware"
)

// frameMax is what the broker grants, and amqp091-go reads no larger frame.
const frameMax = 131_072

// framed is a message whose frame with the headers has this size.
func framed(size int) amqp091.Publishing {
	const (
		frame, content, deliveryMode, table = 8, 14, 1, 4
		key, value                          = 1 + 1, 1 + 4
	)
	filler := strings.Repeat("x", size-frame-content-deliveryMode-table-key-value)
	return amqp091.Publishing{Body: []byte(strconv.Itoa(size)), Headers: amqp091.Table{"h": filler}}
}

// TestHeadersNearTheFrameLimit: first the record is cut, never the message, and the message ends after its retries. The
// broker's own headers, with which it comes back from a tier, have to fit too.
func TestHeadersNearTheFrameLimit(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	sent := map[string]amqp091.Publishing{}
	for _, size := range []int{100_000, 128_000, 129_000} {
		sent[strconv.Itoa(size)] = framed(size)
	}
	for size := 129_500; size <= 130_300; size += 50 {
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
	for identity, letter := range got {
		require.True(t, sent[identity].Headers["h"] == own(letter)["h"] && len(own(letter)) == 1, identity)
		assert.Equal(t, "3", letter.Headers[middleware.FailuresKey], identity)
	}
	assert.Contains(t, got["128000"].Headers, middleware.ReasonKey, "the record is whole where it fits")
	assert.NotContains(t, got["130300"].Headers, middleware.ReasonKey, "and cut where it does not")
	same(t, 3, calls.Counts(), keys(sent)...)
	empty(t, queue)
	assert.Zero(t, a.Log.Count("reconnecting"), "nobody's connection was closed")
}

// TestHeadersAtTheVeryLimit leave no room even for the count: the message cannot be sent on, so its handler keeps it, without a
// loop, and it is there for the next app.
func TestHeadersAtTheVeryLimit(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	calls := testapp.NewLedger()
	a.Handle(queue, 1, func(msg *message.Message) error { calls.Add(string(msg.Payload)); return errDown })
	a.Run()
	testapp.Send(t, "", queue, framed(frameMax))
	broker.Eventually(t, soon, func() bool { return a.Log.Count("holding it") >= 4 }, "the message is held")
	same(t, 1, calls.Counts(), strconv.Itoa(frameMax))
	assert.Zero(t, a.Log.Count("reconnecting"))
	assert.Zero(t, testapp.Depth(t, queue+".dead"))
	require.NoError(t, a.Router.Close())

	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue) == 1 }, "the message is back")
}
