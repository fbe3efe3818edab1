package publisher

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each further try of a message that was written may deliver it twice. One that was not written can be tried again at once.
func TestOnlyAMessageThatWasWrittenIsUnconfirmed(t *testing.T) {
	t.Parallel()
	t.Run("no confirm, and no slot", func(t *testing.T) {
		t.Parallel()
		b := serveConfirms(t)
		p := b.open(1)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		written := message.NewMessage("in flight", []byte("in flight"))
		written.SetContext(ctx)
		inFlight := make(chan error, 1)
		go func() { inFlight <- p.Publish("queue", written) }()
		b.next()

		err := outcome(t, publish(t, p, "waits for a slot", briefly))
		require.ErrorIs(t, err, ErrStalled)
		assert.Equal(t, class{}, classify(err))
		leave()
		err = outcome(t, inFlight)
		require.ErrorIs(t, err, ErrNotConfirmed)
		assert.Equal(t, class{unconfirmed: true}, classify(err))
	})
	t.Run("connection lost", func(t *testing.T) {
		t.Parallel()
		b := serveConfirms(t)
		p := b.open(4)
		inFlight := publish(t, p, "in flight", time.Minute)
		b.next()
		b.slow.Store(true) // there is no other channel for what follows
		p.link.state.Load().session.giveUp()
		receiveFrom(t, b.opens)
		queued := publish(t, p, "waits for a channel", time.Minute)
		require.Eventually(t, func() bool { return len(p.link.slots) == 2 && len(p.link.toWriter) > 0 }, soon, time.Millisecond)
		require.NoError(t, b.conn.Close())

		err := outcome(t, inFlight)
		require.ErrorIs(t, err, ErrNotConnected)
		assert.Equal(t, class{unconfirmed: true}, classify(err), "its first attempt was written")
		err = outcome(t, queued)
		require.ErrorIs(t, err, ErrNotConnected)
		assert.Equal(t, class{}, classify(err))
		err = outcome(t, publish(t, p, "away", time.Minute))
		require.ErrorIs(t, err, ErrNotConnected)
		assert.Equal(t, class{}, classify(err))
	})
	t.Run("connection lost in flight", func(t *testing.T) {
		t.Parallel()
		b := serveConfirms(t)
		p := b.open(4)
		inFlight := publish(t, p, "in flight", time.Minute)
		b.next()
		require.NoError(t, b.conn.Close())
		err := outcome(t, inFlight)
		require.ErrorIs(t, err, ErrNotConnected)
		assert.Equal(t, class{unconfirmed: true}, classify(err))
	})
	t.Run("an alarm", func(t *testing.T) {
		t.Parallel()
		b := serveConfirms(t)
		p := b.open(4)
		inFlight := publish(t, p, "in flight", 5*briefly)
		b.next()
		b.method(0, 10, 60, append([]byte{5}, "alarm"...))
		require.Eventually(t, p.link.state.Load().connection.Blocked.Load, soon, time.Millisecond)
		err := outcome(t, inFlight)
		require.ErrorIs(t, err, ErrBlocked)
		assert.Equal(t, class{unconfirmed: true}, classify(err))
		err = outcome(t, publish(t, p, "blocked", time.Minute))
		require.ErrorIs(t, err, ErrBlocked)
		assert.Equal(t, class{}, classify(err))
	})
}

func TestAPanicOfMarshalIsARefusal(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(1)
	p.config.Marshal = func(*message.Message) (amqp091.Publishing, error) { panic("no schema") }
	err := p.Publish("queue", message.NewMessage("1", nil))
	require.ErrorIs(t, err, ErrRefused)
	assert.ErrorContains(t, err, "no schema")
	assert.Equal(t, class{refused: true}, classify(err))
	require.NoError(t, p.Close())
	err = p.Publish("queue", message.NewMessage("1", nil))
	require.ErrorIs(t, err, ErrClosed)
	assert.Equal(t, class{closed: true}, classify(err))
}
