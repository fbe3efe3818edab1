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
	b, p := opened(t, 2) // one of two is not more than half
	require.ErrorIs(t, receiveFrom(t, send(t, p, "abandoned", briefly)), publish.ErrNotConfirmed)
	abandoned := b.next()
	first := send(t, p, "first", time.Minute)
	second := send(t, p, "second", time.Minute)
	running := b.next()
	b.nothing()
	b.Ack(abandoned)
	waiting := b.next()
	require.Equal(t, abandoned.Channel, waiting.Channel)
	b.Ack(running)
	b.Ack(waiting)
	require.NoError(t, receiveFrom(t, first))
	require.NoError(t, receiveFrom(t, second))
	require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)
	require.Zero(t, p.current.Load().session.abandoned.Load(), "a late confirm does not give up the channel")
}

// The broker may return a message long after its caller has left. No caller claims that return.
func TestTheReturnOfAnAbandonedMessageIsDropped(t *testing.T) {
	b, p := opened(t, 2)
	require.ErrorIs(t, receiveFrom(t, send(t, p, "abandoned", briefly)), publish.ErrNotConfirmed)
	b.Return(b.next())
	require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)

	returned := send(t, p, "returned", time.Minute)
	b.Return(b.next())
	require.ErrorIs(t, receiveFrom(t, returned), publish.ErrUnroutable)
	s := p.current.Load().session
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.returned)
}

// Messages that are never confirmed hold half of the slots. With one more, their channel is given up. The broker does
// not answer the close either.
func TestAbandonedMessagesDoNotHoldTheirSlotsForEver(t *testing.T) {
	const maxInFlight = 8
	b, p := opened(t, maxInFlight)
	abandon := func(i int) {
		require.ErrorIs(t, receiveFrom(t, send(t, p, fmt.Sprint("abandoned ", i), briefly)), publish.ErrNotConfirmed)
	}
	var channel uint16
	for i := range maxInFlight / 2 {
		abandon(i)
		channel = b.next().Channel
	}
	neighbour := send(t, p, "neighbour", time.Minute)
	require.Equal(t, channel, b.next().Channel, "a half is not more than half")
	b.nothing()
	abandon(maxInFlight / 2)
	require.Equal(t, channel, b.next().Channel)

	assert.Equal(t, channel, receiveFrom(t, b.Closes))
	again := b.next()
	assert.Equal(t, "neighbour", again.Body)
	assert.NotEqual(t, channel, again.Channel)
	// The neighbour is not in quarantine: other messages are written before it is confirmed.
	for range 3 * maxInFlight {
		fresh := send(t, p, "fresh", time.Minute)
		sent := b.next()
		assert.Equal(t, again.Channel, sent.Channel)
		b.Ack(sent)
		require.NoError(t, receiveFrom(t, fresh))
	}
	b.Ack(again)
	require.NoError(t, receiveFrom(t, neighbour))
	require.Eventually(t, func() bool { return len(p.slots) == maxInFlight }, soon, time.Millisecond, "no slot is lost")
	assert.Zero(t, p.current.Load().session.abandoned.Load())
}

// A message that was sent once may have been channeltest.Message, even if the channel for its second attempt is never opened.
func TestANeighbourWithoutASecondAttempt(t *testing.T) {
	b, p := opened(t, 2)
	b.Slow.Store(true)
	neighbour := send(t, p, "neighbour", 5*briefly)
	b.next()
	s := p.current.Load().session
	s.giveUp()
	channel := receiveFrom(t, b.Opens)
	err := receiveFrom(t, neighbour)
	require.ErrorIs(t, err, publish.ErrNotConfirmed)
	require.NotContains(t, err.Error(), "not written in time")
	b.Slow.Store(false)
	b.OpenOK(channel)
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
			b, p := opened(t, 2)
			r := prepared(t, p, "late")
			r.state.Store(queued)
			lost := left(t, p, r)
			require.NotNil(t, lost.Channel)
			if written {
				put(t, p, r)
				r.reportWritten()
				b.CloseChannel(b.next().Channel)
			} else {
				r.report(publish.ErrNotConnected, nil, true)
			}
			receiveFrom(t, lost.Channel)
			require.Eventually(t, func() bool { return len(p.slots) == 2 }, soon, time.Millisecond)
		})
	}
}

func prepared(t *testing.T, p *Connection, body string) *request {
	m := messageOf(t.Context(), body)
	r, err := p.prepare(&m)
	require.NoError(t, err)
	return r
}

// put writes a request.
func put(t *testing.T, p *Connection, r *request) {
	var err error
	r.session = p.current.Load().session
	r.confirm, err = r.session.put(r)
	require.NoError(t, err)
}

// left is what the caller of a request learns that leaves now.
func left(t *testing.T, p *Connection, r *request) unpublished.Lost {
	<-p.slots
	c := call{c: p, requests: []*request{r}}
	_, lost := unpublished.Of(c.left(r, errDeadline))
	c.release(r)
	require.False(t, lost.Now())
	return lost
}

// A confirm that is a nack because the channel was closed is settled before the reason is known. A caller that leaves
// then learns of the end, too.
func TestACallerThatLeavesDuringTheCloseLearnsOfTheEnd(t *testing.T) {
	b, p := opened(t, 2)
	r := prepared(t, p, "settled")
	put(t, p, r)
	channel := b.next().Channel
	r.state.Store(settled)
	lost := left(t, p, r)
	b.CloseChannel(channel)
	receiveFrom(t, lost.Channel)
}

// A write after channel.close would close the connection.
func TestNothingIsWrittenToAClosingSession(t *testing.T) {
	b, p := opened(t, 2)
	r := prepared(t, p, "in flight")
	put(t, p, r)
	r.reportWritten()
	channel := b.next().Channel

	r.session.giveUp() // the link closes it
	require.Equal(t, channel, receiveFrom(t, b.Closes))
	_, err := r.session.put(prepared(t, p, "late"))
	require.ErrorIs(t, err, amqp091.ErrClosed)
	b.nothing()

	// The answer to the close ends the wait of the message in flight. It is not taken for the cause of a close.
	b.CloseOK(channel)
	<-r.confirm.Done()
	c := call{c: p, timer: time.NewTimer(time.Minute)}
	require.ErrorIs(t, c.outcome(r, false), errGivenUp)
}

// The broker confirms nothing on a blocked connection, and opens no channel. After the alarm, another channel has to be
// opened.
func TestAnAlarmDoesNotGiveUpTheChannel(t *testing.T) {
	b, p := opened(t, 1)
	result := send(t, p, "in flight", briefly)
	first := b.next()
	b.Alarm()
	connection := p.link.State().Connection
	require.Eventually(t, connection.Blocked.Load, soon, time.Millisecond)
	err := receiveFrom(t, result)
	require.ErrorIs(t, err, publish.ErrBlocked)
	assert.True(t, unconfirmed(t, err))
	err = receiveFrom(t, send(t, p, "blocked", time.Minute))
	require.ErrorIs(t, err, publish.ErrBlocked)
	assert.False(t, unconfirmed(t, err))
	time.Sleep(briefly)
	require.Empty(t, p.slots)
	b.EndAlarm()
	require.Eventually(t, func() bool { return !connection.Blocked.Load() }, soon, time.Millisecond)

	require.ErrorContains(t, receiveFrom(t, send(t, p, "no slot", briefly)), "did not confirm the message: it was not written in time")
	fresh := send(t, p, "fresh", time.Minute)
	sent := b.next()
	require.Equal(t, "fresh", sent.Body)
	require.NotEqual(t, first.Channel, sent.Channel)
	b.Ack(sent)
	require.NoError(t, receiveFrom(t, fresh))
}

// A message that leaves the quarantine before its outcome must not share its channel with the next one. A late close of
// the channel would otherwise refuse the next message.
func TestALateCloseInQuarantineDoesNotRefuseTheNextMessage(t *testing.T) {
	b, p := opened(t, 8)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() { left <- p.SendOne(messageOf(ctx, "harmful")) }()
	shared := b.next()
	harmless := send(t, p, "harmless", time.Minute)
	require.Equal(t, shared.Channel, b.next().Channel)
	b.CloseChannel(shared.Channel)

	alone := b.next()
	if alone.Body != "harmful" { // the callers wake up in any order
		b.Ack(alone)
		require.NoError(t, receiveFrom(t, harmless))
		alone = b.next()
		harmless = publishAlone(t, b, p)
	}
	leave()
	require.ErrorIs(t, receiveFrom(t, left), context.Canceled)
	next := b.next()
	require.Equal(t, "harmless", next.Body)
	require.NotEqual(t, alone.Channel, next.Channel)
	b.CloseChannel(alone.Channel)
	b.Ack(next)
	require.NoError(t, receiveFrom(t, harmless))
}

// publishAlone publishes another message that goes to the quarantine.
func publishAlone(t *testing.T, b confirming, p *Connection) <-chan error {
	t.Helper()
	result := send(t, p, "harmless", time.Minute)
	b.CloseChannel(b.next().Channel)
	return result
}

// The retry middleware tries a message again in later calls. Only the first one may close the channel of the others.
func TestAMessageThatHasClosedAChannelIsPublishedAloneInLaterCalls(t *testing.T) {
	b, p := opened(t, 8)
	var closed atomic.Bool
	again := func() <-chan error {
		result := make(chan error, 1)
		m := timed(t, "harmful", time.Minute)
		m.Suspect = &closed
		go func() { result <- p.SendOne(m) }()
		return result
	}
	first := again()
	b.CloseChannel(b.next().Channel) // the shared one
	b.CloseChannel(b.next().Channel)
	require.ErrorIs(t, receiveFrom(t, first), publish.ErrRefused)
	harmless := send(t, p, "harmless", time.Minute)
	shared := b.next()
	for range 3 {
		next := again()
		alone := b.next()
		require.Equal(t, "harmful", alone.Body)
		require.NotEqual(t, shared.Channel, alone.Channel)
		b.CloseChannel(alone.Channel)
		require.ErrorIs(t, receiveFrom(t, next), publish.ErrRefused)
	}
	b.Ack(shared)
	require.NoError(t, receiveFrom(t, harmless))
}
