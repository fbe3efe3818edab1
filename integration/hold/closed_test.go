package hold_test

import (
	"testing"
	"time"

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

// TestClosedPublisherGivesBack at once: the app closes the publisher of the parts before its router.
func TestClosedPublisherGivesBack(t *testing.T) {
	t.Parallel()
	const messages = 8
	calls := newTimes()
	a := start(t, plan{schedule: schedule, concurrency: messages, handle: func(msg *message.Message) error {
		calls.add(msg.UUID)
		return errDown
	}}, parts)
	require.NoError(t, a.closeParts())
	a.send(messages)
	a.wait(func() bool { return len(a.outcomes(retry.GivenBack)) >= 2*messages }, "all messages are given back")
	for id, at := range calls.all() {
		for i := 1; i < len(at); i++ {
			assert.GreaterOrEqual(t, at[i].Sub(at[i-1]), time.Second/2, "%s came back without a pause", id)
		}
	}
	a.stop()
	for _, e := range a.outcomes(retry.GivenBack) {
		assert.Zero(t, e.Record.Failures)
		assert.ErrorIs(t, e.Err, retry.ErrClosed)
	}
	assert.Empty(t, a.outcomes(retry.Held))
	assert.Zero(t, testapp.Depth(t, a.queue+".dead"))
	left := testapp.NewLedger()
	for _, d := range testapp.Take(t, a.queue, messages) {
		left.Add(d.Headers["_watermill_message_uuid"].(string))
		assert.NotContains(t, d.Headers, recordkey.Failures)
	}
	assert.Equal(t, messages, left.Len())
}

// TestDeadlineOfTheRouterGivesBackWhatIsHeld: it is a shutdown, as the cancellation of the context of Router.Run.
func TestDeadlineOfTheRouterGivesBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, start func(plan) *app) {
		proxy, uri := broker.Proxy(t)
		expires := make(chan struct{})
		a := start(plan{
			schedule: schedule, concurrency: 1, publishing: uri, expires: expires,
			handle: func(*message.Message) error { return errDown },
		})
		proxy.Stop()
		a.send(1)
		a.wait(func() bool { return len(a.outcomes(retry.Held)) == 1 }, "the message is held")
		close(expires)
		a.wait(func() bool { return len(a.outcomes(retry.GivenBack)) == 1 }, "it is given back")
		a.wait(a.router.IsClosed, "Run ends")
		assert.Zero(t, a.log.Count("has set a deadline"), "no middleware has")
		assert.NotContains(t, testapp.Take(t, a.queue, 1)[0].Headers, recordkey.Failures)
	})
}

// TestMessageThatCannotBeMarshalledIsDeadLettered at once, and its neighbours are retried.
func TestMessageThatCannotBeMarshalledIsDeadLettered(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, start func(plan) *app) {
		const messages = 20
		bad := testapp.ID(3)
		processed := testapp.NewLedger()
		a := start(plan{
			schedule: backoff.Constant(short, 2), concurrency: 4,
			change: func(b *config.Config) { b.AMQP.Marshaler = mute{bad: bad} },
			handle: func(msg *message.Message) error {
				if _, retried := retry.ReadRecord(msg.Metadata); !retried {
					return errDown
				}
				processed.Add(msg.UUID)
				return nil
			},
		})
		a.send(messages)
		letter := testapp.Take(t, a.queue+".dead", 1)[0]
		processed.Wait(t, messages-1, soon)
		a.done()
		assert.Equal(t, string(retry.DeadReasonRefused), letter.Headers[recordkey.DeadReason])
		assert.Equal(t, "order "+bad, string(letter.Body))
		assert.Empty(t, processed.Twice())
		assert.NotContains(t, processed.Counts(), bad)
		assert.Empty(t, a.outcomes(retry.Held))
		_, more, err := broker.Channel(t).Get(a.queue+".dead", true)
		require.NoError(t, err)
		assert.False(t, more, "one dead letter")
	})
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
