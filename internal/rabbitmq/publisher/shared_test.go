package publisher

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestSendAfterClose(t *testing.T) {
	_, c := opened(t, 8)
	exchanges := c.NewDeclarations("declare")
	require.NoError(t, c.Close())
	m := timed(t, "closed", time.Minute)
	require.ErrorIs(t, c.SendOne(m), retry.ErrClosed)
	m.Exchange = "events"
	require.ErrorIs(t, exchanges.Exchange(&m, nil), retry.ErrClosed)
	_, err := c.Channel(t.Context())
	require.ErrorIs(t, err, publish.ErrNotConnected)
	health := c.Health()
	assert.False(t, health.Connected)
	require.Empty(t, health.LastError, "Close is no error")
}

func TestHealthOfABlockedConnection(t *testing.T) {
	b, c := opened(t, 8)
	health := c.Health()
	assert.True(t, health.Connected)
	assert.False(t, health.Blocked)
	assert.False(t, health.Since.IsZero())

	b.Alarm()
	require.Eventually(t, func() bool { return c.Health().Blocked }, soon, time.Millisecond)
	assert.Equal(t, health.Since, c.Health().Since)
	assert.True(t, c.Health().Connected)
	_, err := c.Channel(t.Context())
	require.ErrorIs(t, err, publish.ErrBlocked)
	b.EndAlarm()
	require.Eventually(t, func() bool { return !c.Health().Blocked }, soon, time.Millisecond)
}

// A channel that is opened too late is closed, because it has no owner.
func TestTheWaitForAChannelEnds(t *testing.T) {
	b, c := opened(t, 8)
	b.Slow.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	opening := make(chan error, 1)
	go func() {
		_, err := c.Channel(ctx)
		opening <- err
	}()
	channel := receiveFrom(t, b.Opens)
	cancel()
	require.ErrorIs(t, receiveFrom(t, opening), context.Canceled)
	b.OpenOK(channel)
	require.Equal(t, channel, receiveFrom(t, b.Closes))
	b.CloseOK(channel)
}

// The errors of several messages are in their places. A message that cannot be sent stops all of the call.
func TestEachMessageOfACallHasItsOwnError(t *testing.T) {
	b, c := opened(t, 8)
	type result struct {
		failures []error
		err      error
	}
	results := make(chan result, 1)
	go func() {
		failures, err := c.Send(timed(t, "1", time.Minute), timed(t, "2", time.Minute), timed(t, "3", time.Minute))
		results <- result{failures, err}
	}()
	b.Ack(b.next())
	b.Return(b.next())
	b.Ack(b.next())
	r := receiveFrom(t, results)
	require.NoError(t, r.err)
	require.Len(t, r.failures, 3)
	require.NoError(t, r.failures[0])
	require.ErrorIs(t, r.failures[1], publish.ErrUnroutable)
	require.NoError(t, r.failures[2])

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	failed := c.SendOne(messageOf(cancelled, "cancelled before"))
	require.ErrorIs(t, failed, publish.ErrNotConfirmed)
	require.ErrorIs(t, failed, context.Canceled)

	long := timed(t, "long", time.Minute)
	long.RoutingKey = strings.Repeat("x", 256)
	require.ErrorContains(t, c.SendOne(long), "the routing key is")
	long.RoutingKey, long.Exchange = "queue", long.RoutingKey
	require.ErrorIs(t, c.SendOne(long), publish.ErrRefused)

	tooLarge := timed(t, "large", time.Minute)
	tooLarge.Publishing.Headers = tableOf(maxElements + 1)
	failures, err := c.Send(timed(t, "4", time.Minute), tooLarge)
	require.ErrorIs(t, err, publish.ErrRefused)
	assert.Nil(t, failures)
	b.nothing()
}

// Each further try of a message that was written may deliver it twice. One that was not written can be tried again at
// once.
func TestOnlyAMessageThatWasWrittenIsUnconfirmed(t *testing.T) {
	t.Parallel()
	t.Run("no confirm, and no slot", func(t *testing.T) {
		b, p := opened(t, 1)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		inFlight := make(chan error, 1)
		go func() { inFlight <- p.SendOne(messageOf(ctx, "in flight")) }()
		b.next()

		err := receiveFrom(t, send(t, p, "waits for a slot", briefly))
		require.ErrorIs(t, err, publish.ErrNotConfirmed)
		assert.False(t, unconfirmed(t, err))
		leave()
		err = receiveFrom(t, inFlight)
		require.ErrorIs(t, err, publish.ErrNotConfirmed)
		assert.True(t, unconfirmed(t, err))
	})
	t.Run("connection lost", func(t *testing.T) {
		b, p := opened(t, 4)
		inFlight := send(t, p, "in flight", time.Minute)
		b.next()
		b.Slow.Store(true) // there is no other channel for what follows
		p.current.Load().session.giveUp()
		receiveFrom(t, b.Opens)
		queued := send(t, p, "waits for a channel", time.Minute)
		require.Eventually(t, func() bool { return len(p.slots) == 2 && len(p.toWriter) > 0 }, soon, time.Millisecond)
		b.Cut()

		err := receiveFrom(t, inFlight)
		require.ErrorIs(t, err, publish.ErrNotConnected)
		assert.True(t, unconfirmed(t, err), "its first attempt was written")
		err = receiveFrom(t, queued)
		require.ErrorIs(t, err, publish.ErrNotConnected)
		assert.False(t, unconfirmed(t, err))
		err = receiveFrom(t, send(t, p, "away", time.Minute))
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
	begin := func(t *testing.T) (confirming, *Connection, *session, channeltest.Message, unpublished.Lost) {
		b := serveConfirms(t)
		p := b.open(64)
		s := p.current.Load().session
		for {
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() { left <- p.SendOne(messageOf(ctx, "abandoned")) }()
			message := b.next()
			leave()
			of := lost(t, receiveFrom(t, left))
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
		b.Cut()
		require.Eventually(t, of.Now, soon, time.Millisecond)
		assert.True(t, lost(t, receiveFrom(t, inFlight)).Now(), "at once")
	})
	t.Run("the broker closes the channel", func(t *testing.T) {
		t.Parallel()
		b, p, s, message, of := begin(t)
		b.CloseChannel(message.Channel)
		receiveFrom(t, s.closed)
		require.Eventually(t, of.Now, soon, time.Millisecond)
		assert.True(t, p.Health().Connected, "before the connection is lost")
	})
	t.Run("the publisher closes the channel, and the connection is lost later", func(t *testing.T) {
		t.Parallel()
		b, _, s, message, of := begin(t)
		s.giveUp()
		require.Equal(t, message.Channel, receiveFrom(t, b.Closes))
		b.CloseOK(message.Channel)
		receiveFrom(t, s.closed)
		assert.False(t, of.Now(), "the tier is silent")
		b.Cut()
		require.Eventually(t, of.Now, soon, time.Millisecond)
	})
}

func unconfirmed(t *testing.T, err error) bool {
	t.Helper()
	var failed *failure.Error
	require.ErrorAs(t, err, &failed)
	return unpublished.KindOf(failed) == unpublished.Unconfirmed
}

func TestNoLogShowsThePassword(t *testing.T) {
	t.Parallel()
	const canary = "c4nary"
	b := serveConfirms(t)
	b.Slow.Store(true)
	go func() {
		<-b.Opens
		b.Cut()
	}()
	var log bytes.Buffer
	uri := "amqp://user:" + canary + "@" + b.Address + "/vhost"
	_, err := Open(Config{
		Wire: wire.Config{URI: uri},
	}, watermill.NewStdLoggerWithOut(&log, true, true))
	require.Error(t, err)
	assert.NotContains(t, err.Error()+log.String(), canary)
}

func TestADeclarationThatFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("cannot declare")
	for name, row := range map[string]struct {
		declare func() error
		cause   string
	}{
		"error": {func() error { return broken }, "cannot declare"},
		"panic": {func() error { panic("oops") }, "declare panicked: oops"},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := opened(t, 8)
			b.Closing.Store(true)
			d := c.NewDeclarations("declare")
			calls := 0
			once := func(channel *amqp091.Channel, exchange string) error {
				assert.Equal(t, "events", exchange)
				assert.False(t, channel.IsClosed())
				if calls++; calls == 1 {
					return row.declare()
				}
				return nil
			}
			m := timed(t, "message", time.Minute)
			require.NoError(t, d.Exchange(&m, nil), "the default exchange always exists")
			m.Exchange = "events"
			err := d.Exchange(&m, once)
			require.ErrorIs(t, err, publish.ErrNotDeclared)
			require.ErrorContains(t, err, row.cause)
			for range 2 {
				require.NoError(t, d.Exchange(&m, once))
			}
			assert.Equal(t, 2, calls, "once without an error")

			unroutable := m.Failure(publish.ErrUnroutable, &amqp091.Error{Code: amqp091.NotFound, Reason: "NOT_FOUND"})
			assert.True(t, NoExchange(unroutable))
			err = d.again(&m, "events", unroutable, func(*amqp091.Channel) error { return row.declare() })
			require.ErrorIs(t, err, publish.ErrUnroutable)
			require.ErrorContains(t, err, "NOT_FOUND")
			require.ErrorContains(t, err, row.cause)
			require.NoError(t, d.Exchange(&m, once))
			assert.Equal(t, 3, calls, "after a failure it is declared again")

			require.NoError(t, d.again(&m, "queue", unroutable, func(*amqp091.Channel) error { return nil }))
			err = d.again(&m, "queue", unroutable, func(*amqp091.Channel) error { return row.declare() })
			require.ErrorIs(t, err, publish.ErrUnroutable)
			require.ErrorContains(t, err, row.cause)
		})
	}
}

func TestADeclarationThatHangsIsJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, on, release := &Declarations{name: "declare"}, new(wire.Connection), make(chan struct{})
		defer close(release)
		go func() {
			_ = d.once.Do(t.Context(), on.Number(), "events", time.Time{}, func() error { <-release; return nil })
		}()
		synctest.Wait()
		begin := time.Now()
		require.EqualError(t, d.do(t.Context(), on, "events", time.Time{}, nil), "declare did not return in time, within 10s")
		assert.Equal(t, declareTimeout, time.Since(begin))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, d.do(ctx, on, "events", time.Now(), nil), context.Canceled)
	})
}
