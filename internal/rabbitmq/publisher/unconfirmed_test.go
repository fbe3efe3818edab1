package publisher

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// Each further try of a message that was written may deliver it twice. One that was not written can be tried again at
// once.
func TestOnlyAMessageThatWasWrittenIsUnconfirmed(t *testing.T) {
	t.Parallel()
	t.Run("no confirm, and no slot", func(t *testing.T) {
		t.Parallel()
		b := serveConfirms(t)
		p := b.open(1)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		inFlight := make(chan error, 1)
		go func() { inFlight <- p.SendOne(messageOf(ctx, "in flight")) }()
		b.next()

		err := outcome(t, send(t, p, "waits for a slot", briefly))
		require.ErrorIs(t, err, publish.ErrStalled)
		assert.False(t, unconfirmed(t, err))
		leave()
		err = outcome(t, inFlight)
		require.ErrorIs(t, err, publish.ErrNotConfirmed)
		assert.True(t, unconfirmed(t, err))
	})
	t.Run("connection lost", func(t *testing.T) {
		t.Parallel()
		b := serveConfirms(t)
		p := b.open(4)
		inFlight := send(t, p, "in flight", time.Minute)
		b.next()
		b.slow.Store(true) // there is no other channel for what follows
		p.current.Load().session.giveUp()
		receiveFrom(t, b.opens)
		queued := send(t, p, "waits for a channel", time.Minute)
		require.Eventually(t, func() bool { return len(p.slots) == 2 && len(p.toWriter) > 0 }, soon, time.Millisecond)
		require.NoError(t, b.conn.Close())

		err := outcome(t, inFlight)
		require.ErrorIs(t, err, publish.ErrNotConnected)
		assert.True(t, unconfirmed(t, err), "its first attempt was written")
		err = outcome(t, queued)
		require.ErrorIs(t, err, publish.ErrNotConnected)
		assert.False(t, unconfirmed(t, err))
		err = outcome(t, send(t, p, "away", time.Minute))
		require.ErrorIs(t, err, publish.ErrNotConnected)
		assert.False(t, unconfirmed(t, err))
	})
}

// The wait for a confirm is over when its channel or its connection is lost, also after the caller has left. It is not
// when the publisher has closed the channel: the queue of the message is silent then.
func TestWhenTheConfirmOfAnAbandonedMessageCannotComeAnyMore(t *testing.T) {
	t.Parallel()
	lost := func(t *testing.T, err error) unpublished.Lost {
		t.Helper()
		kind, lost := unpublished.Of(err)
		require.Equal(t, unpublished.Unconfirmed, kind)
		return lost
	}
	begin := func(t *testing.T) (*confirming, *Connection, *session, delivered, unpublished.Lost) {
		b := serveConfirms(t)
		p := b.open(64)
		s := p.current.Load().session
		for {
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() { left <- p.SendOne(messageOf(ctx, "abandoned")) }()
			message := b.next()
			leave()
			of := lost(t, outcome(t, left))
			require.False(t, of.Now(), "the confirm can come")
			if of.Channel != nil { // else the caller has left before it saw on which channel the message was written
				return b, p, s, message, of
			}
		}
	}
	t.Run("the connection is lost", func(t *testing.T) {
		t.Parallel()
		b, p, _, _, of := begin(t)
		inFlight := send(t, p, "in flight", time.Minute)
		b.next()
		require.NoError(t, b.conn.Close())
		require.Eventually(t, of.Now, soon, time.Millisecond)
		assert.True(t, lost(t, outcome(t, inFlight)).Now(), "at once")
	})
	t.Run("the broker closes the channel", func(t *testing.T) {
		t.Parallel()
		b, _, s, message, of := begin(t)
		b.closeChannel(message.channel)
		receiveFrom(t, s.closed)
		assert.True(t, of.Now())
	})
	t.Run("the publisher closes the channel, and the connection is lost later", func(t *testing.T) {
		t.Parallel()
		b, _, s, message, of := begin(t)
		s.giveUp()
		require.Equal(t, message.channel, receiveFrom(t, b.closes))
		b.closeOK(message.channel)
		receiveFrom(t, s.closed)
		assert.False(t, of.Now(), "the tier is silent")
		require.NoError(t, b.conn.Close())
		require.Eventually(t, of.Now, soon, time.Millisecond)
	})
}

func unconfirmed(t *testing.T, err error) bool {
	t.Helper()
	var failed *publish.Error
	require.ErrorAs(t, err, &failed)
	return unpublished.KindOf(failed) == unpublished.Unconfirmed
}
