package publisher

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestSendAfterClose(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	c := b.open(8)
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
	t.Parallel()
	b := serveConfirms(t)
	c := b.open(8)
	health := c.Health()
	assert.True(t, health.Connected)
	assert.False(t, health.Blocked)
	assert.False(t, health.Since.IsZero())

	b.method(0, 10, 60, append([]byte{5}, "alarm"...))
	require.Eventually(t, func() bool { return c.Health().Blocked }, soon, time.Millisecond)
	assert.Equal(t, health.Since, c.Health().Since)
	assert.True(t, c.Health().Connected)
	_, err := c.Channel(t.Context())
	require.ErrorIs(t, err, publish.ErrBlocked)
	b.method(0, 10, 61, nil)
	require.Eventually(t, func() bool { return !c.Health().Blocked }, soon, time.Millisecond)
}

// A channel that is opened too late is closed, because it has no owner.
func TestTheWaitForAChannelEnds(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	c := b.open(8)
	b.slow.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	opening := make(chan error, 1)
	go func() {
		_, err := c.Channel(ctx)
		opening <- err
	}()
	channel := receiveFrom(t, b.opens)
	cancel()
	require.ErrorIs(t, receiveFrom(t, opening), context.Canceled)
	b.openOK(channel)
	require.Equal(t, channel, receiveFrom(t, b.closes))
	b.closeOK(channel)
}

// The errors of several messages are in their places. A message that cannot be sent stops all of the call.
func TestEachMessageOfACallHasItsOwnError(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	c := b.open(8)
	type result struct {
		failures []error
		err      error
	}
	results := make(chan result, 1)
	go func() {
		failures, err := c.Send(timed(t, "1", time.Minute), timed(t, "2", time.Minute), timed(t, "3", time.Minute))
		results <- result{failures, err}
	}()
	b.ack(b.next())
	b.returnUnroutable(b.next())
	b.ack(b.next())
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
