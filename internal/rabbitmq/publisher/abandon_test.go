package publisher

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

const briefly = 100 * time.Millisecond

func TestAnAbandonedMessageKeepsItsSlotUntilItsConfirm(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(2) // one of two is not more than half
	require.ErrorIs(t, outcome(t, send(t, p, "abandoned", briefly)), publish.ErrNotConfirmed)
	abandoned := b.next()
	first := send(t, p, "first", time.Minute)
	second := send(t, p, "second", time.Minute)
	running := b.next()
	b.nothing()
	b.ack(abandoned)
	waiting := b.next()
	require.Equal(t, abandoned.channel, waiting.channel)
	b.ack(running)
	b.ack(waiting)
	require.NoError(t, outcome(t, first))
	require.NoError(t, outcome(t, second))
	require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)
	require.Zero(t, p.current.Load().session.abandoned.Load(), "a late confirm does not give up the channel")
}

// The broker may return a message long after its caller has left. No caller claims that return.
func TestTheReturnOfAnAbandonedMessageIsDropped(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(2)
	require.ErrorIs(t, outcome(t, send(t, p, "abandoned", briefly)), publish.ErrNotConfirmed)
	b.returnUnroutable(b.next())
	require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)

	returned := send(t, p, "returned", time.Minute)
	b.returnUnroutable(b.next())
	require.ErrorIs(t, outcome(t, returned), publish.ErrUnroutable)
	s := p.current.Load().session
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.returned)
}

// Messages that are never confirmed hold half of the slots. With one more, their channel is given up. The broker does
// not answer the close either.
func TestAbandonedMessagesDoNotHoldTheirSlotsForEver(t *testing.T) {
	t.Parallel()
	const maxInFlight = 8
	b := serveConfirms(t)
	p := b.open(maxInFlight)
	abandon := func(i int) {
		require.ErrorIs(t, outcome(t, send(t, p, fmt.Sprint("abandoned ", i), briefly)), publish.ErrNotConfirmed)
	}
	var channel uint16
	for i := range maxInFlight / 2 {
		abandon(i)
		channel = b.next().channel
	}
	neighbour := send(t, p, "neighbour", time.Minute)
	require.Equal(t, channel, b.next().channel, "a half is not more than half")
	b.nothing()
	abandon(maxInFlight / 2)
	require.Equal(t, channel, b.next().channel)

	assert.Equal(t, channel, receiveFrom(t, b.closes))
	again := b.next()
	assert.Equal(t, "neighbour", again.body)
	assert.NotEqual(t, channel, again.channel)
	// The neighbour is not in quarantine: other messages are written before it is confirmed.
	for range 3 * maxInFlight {
		fresh := send(t, p, "fresh", time.Minute)
		sent := b.next()
		assert.Equal(t, again.channel, sent.channel)
		b.ack(sent)
		require.NoError(t, outcome(t, fresh))
	}
	b.ack(again)
	require.NoError(t, outcome(t, neighbour))
	require.Eventually(t, func() bool { return len(p.slots) == maxInFlight }, soon, time.Millisecond, "no slot is lost")
	assert.Zero(t, p.current.Load().session.abandoned.Load())
}

// A message that was sent once may have been delivered, even if the channel for its second attempt is never opened.
func TestANeighbourWithoutASecondAttempt(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(2)
	b.slow.Store(true)
	neighbour := send(t, p, "neighbour", 5*briefly)
	b.next()
	s := p.current.Load().session
	s.giveUp()
	channel := receiveFrom(t, b.opens)
	err := outcome(t, neighbour)
	require.ErrorIs(t, err, publish.ErrNotConfirmed)
	require.NotContains(t, err.Error(), "not written in time")
	b.slow.Store(false)
	b.openOK(channel)
	require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)
}

// A caller that leaves before its message is written learns when it cannot be confirmed any more, while the connection
// lives. Else it would keep its place for a minute.
func TestACallerThatLeavesBeforeTheWriteLearnsOfTheEnd(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]bool{
		"it is never written": false, "the broker closes the channel of the message": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := serveConfirms(t)
			p := b.open(2)
			m := messageOf(t.Context(), "late")
			r, err := p.prepare(&m)
			require.NoError(t, err)
			r.state.Store(queued)
			<-p.slots
			c := call{c: p, requests: []*request{r}}
			_, lost := unpublished.Of(c.left(r, errDeadline))
			require.NotNil(t, lost.Channel)
			c.release(r)
			require.False(t, lost.Now())
			if written {
				r.session = p.current.Load().session
				r.confirm, err = r.session.put(r)
				require.NoError(t, err)
				r.reportWritten()
				b.closeChannel(b.next().channel)
			} else {
				r.report(publish.ErrNotConnected, nil, true)
			}
			receiveFrom(t, lost.Channel)
			require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)
		})
	}
}

// A confirm that is a nack because the channel was closed is settled before the reason is known. A caller that leaves
// then learns of the end, too.
func TestACallerThatLeavesDuringTheCloseLearnsOfTheEnd(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(2)
	m := messageOf(t.Context(), "settled")
	r, err := p.prepare(&m)
	require.NoError(t, err)
	<-p.slots
	r.session = p.current.Load().session
	r.confirm, err = r.session.put(r)
	require.NoError(t, err)
	channel := b.next().channel
	r.state.Store(settled)
	c := call{c: p, requests: []*request{r}}
	_, lost := unpublished.Of(c.left(r, errDeadline))
	c.release(r)
	require.False(t, lost.Now())
	b.closeChannel(channel)
	receiveFrom(t, lost.Channel)
}

// A write after channel.close would close the connection.
func TestNothingIsWrittenToAClosingSession(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(2)
	s := p.current.Load().session
	prepare := func(body string) *request {
		m := messageOf(t.Context(), body)
		r, err := p.prepare(&m)
		require.NoError(t, err)
		return r
	}
	r := prepare("in flight")
	var err error
	r.session = s
	r.confirm, err = s.put(r)
	require.NoError(t, err)
	r.reportWritten()
	channel := b.next().channel

	s.giveUp() // the link closes it
	require.Equal(t, channel, receiveFrom(t, b.closes))
	_, err = s.put(prepare("late"))
	require.ErrorIs(t, err, amqp091.ErrClosed)
	b.nothing()

	// The answer to the close ends the wait of the message in flight. It is not taken for the cause of a close.
	b.closeOK(channel)
	<-r.confirm.Done()
	c := call{c: p, timer: time.NewTimer(time.Minute)}
	require.ErrorIs(t, c.outcome(r, false), errGivenUp)
}

// The broker confirms nothing on a blocked connection, and opens no channel. After the alarm, another channel has to be
// opened.
func TestAnAlarmDoesNotGiveUpTheChannel(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(1)
	result := send(t, p, "in flight", briefly)
	first := b.next()
	b.method(0, 10, 60, append([]byte{5}, "alarm"...))
	connection := p.link.State().Connection
	require.Eventually(t, connection.Blocked.Load, soon, time.Millisecond)
	err := outcome(t, result)
	require.ErrorIs(t, err, publish.ErrBlocked)
	assert.True(t, unconfirmed(t, err))
	err = outcome(t, send(t, p, "blocked", time.Minute))
	require.ErrorIs(t, err, publish.ErrBlocked)
	assert.False(t, unconfirmed(t, err))
	time.Sleep(briefly)
	require.Empty(t, p.slots)
	b.method(0, 10, 61, nil)
	require.Eventually(t, func() bool { return !connection.Blocked.Load() }, soon, time.Millisecond)

	require.ErrorContains(t, outcome(t, send(t, p, "no slot", briefly)), "did not confirm the message: it was not written in time")
	fresh := send(t, p, "fresh", time.Minute)
	sent := b.next()
	require.Equal(t, "fresh", sent.body)
	require.NotEqual(t, first.channel, sent.channel)
	b.ack(sent)
	require.NoError(t, outcome(t, fresh))
}

// A message that leaves the quarantine before its outcome must not share its channel with the next one. A late close of
// the channel would otherwise refuse the next message.
func TestALateCloseInQuarantineDoesNotRefuseTheNextMessage(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(8)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() { left <- p.SendOne(messageOf(ctx, "harmful")) }()
	shared := b.next()
	harmless := send(t, p, "harmless", time.Minute)
	require.Equal(t, shared.channel, b.next().channel)
	b.closeChannel(shared.channel)

	alone := b.next()
	if alone.body != "harmful" { // the callers wake up in any order
		b.ack(alone)
		require.NoError(t, outcome(t, harmless))
		alone = b.next()
		harmless = publishAlone(t, b, p)
	}
	leave()
	require.ErrorIs(t, outcome(t, left), context.Canceled)
	next := b.next()
	require.Equal(t, "harmless", next.body)
	require.NotEqual(t, alone.channel, next.channel)
	b.closeChannel(alone.channel)
	b.ack(next)
	require.NoError(t, outcome(t, harmless))
}

// publishAlone publishes another message that goes to the quarantine.
func publishAlone(t *testing.T, b *confirming, p *Connection) <-chan error {
	t.Helper()
	result := send(t, p, "harmless", time.Minute)
	b.closeChannel(b.next().channel)
	return result
}

// The retry middleware tries a message again in later calls. Only the first one may close the channel of the others.
func TestAMessageThatHasClosedAChannelIsPublishedAloneInLaterCalls(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	p := b.open(8)
	var closed atomic.Bool
	again := func() <-chan error {
		result := make(chan error, 1)
		m := timed(t, "harmful", time.Minute)
		m.Suspect = &closed
		go func() { result <- p.SendOne(m) }()
		return result
	}
	first := again()
	b.closeChannel(b.next().channel) // the shared one
	b.closeChannel(b.next().channel)
	require.ErrorIs(t, outcome(t, first), publish.ErrRefused)
	harmless := send(t, p, "harmless", time.Minute)
	shared := b.next()
	for range 3 {
		next := again()
		alone := b.next()
		require.Equal(t, "harmful", alone.body)
		require.NotEqual(t, shared.channel, alone.channel)
		b.closeChannel(alone.channel)
		require.ErrorIs(t, outcome(t, next), publish.ErrRefused)
	}
	b.ack(shared)
	require.NoError(t, outcome(t, harmless))
}
