package natsretry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waitingStream is a stream with messages that wait, whose schedules the server does not come to. Each publish takes a
// second.
type waitingStream struct {
	jetstream.Stream
	at    map[uint64]*jetstream.RawStreamMsg
	state jetstream.StreamState
	fault error // of a read
}

func (s *waitingStream) store(at time.Time, header nats.Header) {
	s.state.LastSeq++
	s.at[s.state.LastSeq] = &jetstream.RawStreamMsg{Sequence: s.state.LastSeq, Header: header, Time: at}
}

func (s *waitingStream) CachedInfo() *jetstream.StreamInfo {
	return &jetstream.StreamInfo{State: s.state, TimeStamp: time.Now(), Config: jetstream.StreamConfig{
		Subjects: []string{"retry.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true,
		Metadata: map[string]string{levelKey: "2"},
	}}
}

func (s *waitingStream) GetMsg(
	_ context.Context, sequence uint64, _ ...jetstream.GetMsgOpt,
) (*jetstream.RawStreamMsg, error) {
	if s.fault != nil {
		return nil, s.fault
	}
	for ; sequence <= s.state.LastSeq; sequence++ {
		if raw := s.at[sequence]; raw != nil {
			return raw, nil
		}
	}
	return nil, jetstream.ErrMsgNotFound
}

type streams struct {
	jetstream.JetStream
	stream *waitingStream
}

func (s streams) Stream(context.Context, string) (jetstream.Stream, error) { return s.stream, nil }

func (s streams) PublishMsg(
	ctx context.Context, msg *nats.Msg, _ ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for sequence, raw := range s.stream.at {
		if raw.Header.Get("id") == msg.Header.Get("id") {
			delete(s.stream.at, sequence)
		}
	}
	s.stream.store(time.Now(), msg.Header)
	return &jetstream.PubAck{}, nil
}

// lookAt looks at a stream with so many messages that the server has given up.
func lookAt(t *testing.T, overdueMessages int, fault error) (*look, error) {
	t.Helper()
	stream := &waitingStream{at: map[uint64]*jetstream.RawStreamMsg{}, fault: fault}
	long := time.Now().Add(-2 * overdueAfter)
	for i := range overdueMessages {
		stream.store(long, nats.Header{
			scheduleHeader: {scheduleAt + long.UTC().Format(dueLayout)}, "id": {string(rune('a' + i))},
		})
	}
	s := &server{Config: Config{Prefix: "retry"}, js: streams{stream: stream}, stream: "retry"}
	s.clock = newClock(s.leader)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := &look{overdue: &overdue{server: s}, ctx: ctx}
	return l, l.all()
}

// The server needs a moment for what was published again.
func TestLookPublishesEachMessageOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := lookAt(t, 3, nil)
		require.NoError(t, err)
		assert.Equal(t, 3, l.published)
		assert.Zero(t, l.stays)
	})
}

// A look that has not come to an end is no fault. Rights lack only where the server has never answered.
func TestLookThatEndsEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := lookAt(t, 100, nil)
		require.NoError(t, err)
		assert.Positive(t, l.published)
		assert.Zero(t, l.stays)
		_, err = lookAt(t, 1, nats.ErrTimeout)
		require.ErrorContains(t, err, "the right to publish to $JS.API.STREAM.MSG.GET.retry")
	})
	errDown := errors.New("down")
	l := &look{overdue: &overdue{server: &server{}}, ctx: t.Context(), stream: &waitingStream{}}
	_, err := l.next(1)
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	l.stream.(*waitingStream).fault = errDown
	_, err = l.next(1)
	require.ErrorIs(t, err, errDown)
	assert.True(t, l.answered)
}
