package hold_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestDeadlineOfTheRouterGivesBackWhatIsHeld: it is a shutdown, as the cancellation of the context of Router.Run.
func TestDeadlineOfTheRouterGivesBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	proxy, uri := broker.Proxy(t)
	expires := make(chan struct{})
	a := start(t, plan{
		schedule: schedule, concurrency: 1, publishing: uri, expires: expires,
		handle: func(*message.Message) error { return errDown },
	})
	proxy.Stop()
	a.send(1)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.Held)) == 1 }, "the message is held")
	close(expires)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.GivenBack)) == 1 }, "it is given back")
	testapp.Eventually(t, a.Router.IsClosed, "Run ends")
	assert.Zero(t, a.Log.Count("has set a deadline"), "no middleware has")
	assert.NotContains(t, testapp.Take(t, a.queue, 1)[0].Headers, recordkey.Failures)
}

// TestMessageThatCannotBeMarshalledIsDeadLettered at once, and its neighbours are retried.
func TestMessageThatCannotBeMarshalledIsDeadLettered(t *testing.T) {
	t.Parallel()
	const messages = 20
	bad := testapp.ID(3)
	processed := testapp.NewLedger()
	a := start(t, plan{
		schedule: backoff.Constant(short, 2), concurrency: 4,
		change: func(b *config.Config) { b.AMQP.Marshaler = mute{bad: bad} },
		handle: processed.HandleRetries,
	})
	a.send(messages)
	letter := testapp.Take(t, a.queue+".dead", 1)[0]
	processed.Wait(t, messages-1, soon)
	a.done()
	assert.Equal(t, string(retry.DeadReasonRefused), letter.Headers[recordkey.DeadReason])
	assert.Equal(t, "order "+bad, string(letter.Body))
	assert.Empty(t, processed.Twice())
	assert.NotContains(t, processed.Counts(), bad)
	assert.Empty(t, a.Events(retry.Held))
	_, more, err := broker.Channel(t).Get(a.queue+".dead", true)
	require.NoError(t, err)
	assert.False(t, more, "one dead letter")
}

// mute cannot marshal one message.
type mute struct {
	amqp.DefaultMarshaler
	bad string
}

func (m mute) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if msg.UUID == m.bad {
		return amqp091.Publishing{}, errDown
	}
	return m.DefaultMarshaler.Marshal(msg)
}
