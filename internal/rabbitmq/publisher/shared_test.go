package publisher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// share opens a connection with two publishers.
func share(t *testing.T, maxInFlight int) (b *confirming, first, second *Publisher) {
	t.Helper()
	b = serveConfirms(t)
	first = b.open(maxInFlight)
	second, err := NewPublisher(first.connection, Config{})
	require.NoError(t, err)
	return b, first, second
}

func TestMaxInFlightCountsTheMessagesOfAllPublishers(t *testing.T) {
	t.Parallel()
	b, first, second := share(t, 1)
	running := publish(t, first, "running", time.Minute)
	message := b.next()
	waiting := publish(t, second, "waiting", time.Minute)
	b.nothing()
	b.ack(message)
	require.NoError(t, outcome(t, running))
	b.ack(b.next())
	require.NoError(t, outcome(t, waiting))
}

func TestASharedPublisherWaitsOnlyForItsOwnMessages(t *testing.T) {
	t.Parallel()
	b, first, second := share(t, 8)
	ours := publish(t, second, "ours", time.Minute)
	own := b.next()
	other := publish(t, first, "other", time.Minute)
	others := b.next()

	closed := make(chan error, 1)
	go func() { closed <- second.Close() }()
	require.Eventually(t, func() bool {
		return errors.Is(second.Publish("queue", timed(t, "late", 0)), ErrClosed)
	}, soon, time.Millisecond)
	select {
	case <-closed:
		require.FailNow(t, "Close did not wait for the publisher's own message")
	case <-time.After(briefly):
	}
	b.ack(own)
	require.NoError(t, outcome(t, ours))
	require.NoError(t, receiveFrom(t, closed))
	require.ErrorIs(t, second.Publish("queue", timed(t, "closed", time.Minute)), ErrClosed)
	require.Len(t, first.connection.publishers, 1, "a closed publisher is not kept")

	b.ack(others)
	require.NoError(t, outcome(t, other))
	again := publish(t, first, "again", time.Minute)
	b.ack(b.next())
	require.NoError(t, outcome(t, again))
}

func TestNewPublisherOnAClosedConnection(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(8)
	connection := p.connection
	require.NoError(t, connection.Close())
	require.ErrorIs(t, p.Publish("queue", timed(t, "closed", time.Minute)), ErrClosed)
	_, err := NewPublisher(connection, Config{})
	require.ErrorIs(t, err, ErrClosed)
	_, err = connection.Channel(t.Context())
	require.ErrorIs(t, err, ErrNotConnected)
	health := connection.Health()
	assert.False(t, health.Connected)
	require.NoError(t, health.LastError, "Close is no error")
	_, err = NewPublisher(nil, Config{})
	require.ErrorContains(t, err, "publisher.Open")
}

func TestHealthOfABlockedConnection(t *testing.T) {
	t.Parallel()
	b, first, _ := share(t, 8)
	connection := first.connection
	health := connection.Health()
	assert.True(t, health.Connected)
	assert.False(t, health.Blocked)
	assert.False(t, health.Since.IsZero())
	require.NoError(t, health.Ready())

	b.method(0, 10, 60, append([]byte{5}, "alarm"...))
	require.Eventually(t, func() bool { return connection.Health().Blocked }, soon, time.Millisecond)
	assert.Equal(t, health.Since, connection.Health().Since)
	require.NoError(t, connection.Health().Ready())
	_, err := connection.Channel(t.Context())
	require.ErrorIs(t, err, ErrBlocked)
	b.method(0, 10, 61, nil)
	require.Eventually(t, func() bool { return !connection.Health().Blocked }, soon, time.Millisecond)
}

// A channel that is opened too late is closed, because it has no owner.
func TestTheWaitForAChannelEnds(t *testing.T) {
	t.Parallel()
	b, first, _ := share(t, 8)
	b.slow.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	opening := make(chan error, 1)
	go func() {
		_, err := first.connection.Channel(ctx)
		opening <- err
	}()
	channel := receiveFrom(t, b.opens)
	cancel()
	require.ErrorIs(t, receiveFrom(t, opening), context.Canceled)
	b.openOK(channel)
	require.Equal(t, channel, receiveFrom(t, b.closes))
	b.closeOK(channel)
}
