package natsretry

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that the server has lost is an error, and the next one is a new one.
func TestRequestThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	requests := 0
	q := (&wire{answers: func(s *session, inbox string, n int) {
		if requests++; requests > 1 {
			assert.Len(t, s.subscriptions, 1, "the first one has ended")
			s.deliver(inbox, n)
		}
	}}).queue(t)
	patient := q.waits
	q.waits.expires, q.waits.slack = 0, 0
	_, err := q.Take(t.Context(), 1)
	require.ErrorIs(t, err, errUnanswered)
	q.waits = patient
	taken, err := q.Take(t.Context(), 1)
	require.NoError(t, err)
	assert.Len(t, taken, 1)
}

// The server serves a request also on the next connection, as long as a client listens. What it brings until then is
// handled, and it does not stay beside the next one.
func TestRequestOfALostConnection(t *testing.T) {
	t.Parallel()
	var lost string
	w := &wire{
		answers: func(s *session, inbox string, n int) {
			if lost == "" {
				lost = inbox
				_ = s.Close()
				return
			}
			assert.NotEqual(t, lost, inbox)
			assert.Len(t, s.subscriptions, 1, "the first one has ended")
			s.deliver(inbox, n)
		},
		resumed: func(s *session) {
			if s.inboxes[len(s.inboxes)-1] == lost {
				s.deliver(lost, 1)
			}
		},
	}
	q := w.queue(t)
	for _, want := range []int{1, 2} {
		taken, err := q.Take(t.Context(), 2)
		require.NoError(t, err)
		assert.Len(t, taken, want)
	}
}

// A request has room for all its messages, whatever the requests before it asked for.
func TestRequestForManyMessages(t *testing.T) {
	t.Parallel()
	q := (&wire{answers: func(s *session, inbox string, n int) {
		s.deliver(inbox, n)
		s.status(inbox, "404 No Messages")
	}}).queue(t)
	for range 10 {
		for _, n := range []int{1, 500} {
			taken, err := q.Take(t.Context(), n)
			require.NoError(t, err)
			require.Len(t, taken, n)
		}
	}
}

// What a request has brought when its subscription ends is given back, and nothing else of it comes.
func TestRequestOfASubscriptionThatEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &wire{answers: func(s *session, inbox string, n int) {
		s.deliver(inbox, n-1)
		cancel()
	}}
	q := w.queue(t)
	taken, err := q.Take(ctx, 3)
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, taken)
	assert.Equal(t, "$JS.ACK.1 -NAK", <-w.replies)
	assert.Equal(t, "$JS.ACK.2 -NAK", <-w.replies)
	assert.Zero(t, q.Conn.NumSubscriptions())
}

// A request that ends before its time, whatever the reason, is sent again after a pause.
func TestAnswersToARequest(t *testing.T) {
	t.Parallel()
	q := (&wire{}).queue(t)
	heed := func(status, description string) error {
		return q.heed(t.Context(), &nats.Msg{Header: nats.Header{"Status": {status}, "Description": {description}}})
	}
	for i, answer := range [][2]string{
		{"408", "Requests Pending"}, {"408", "Interest Expired"}, {"404", "No Messages"}, {"409", "Leadership Change"},
		{"409", "Server Shutdown"},
	} {
		require.NoError(t, heed(answer[0], answer[1]))
		assert.Equal(t, i+1, q.crowd)
	}
	require.NoError(t, heed("408", "Request Timeout"))
	assert.Zero(t, q.crowd, "it has ended in time")
	require.ErrorContains(t, heed("409", "Exceeded MaxWaiting"), `of "orders": 409 Exceeded MaxWaiting`)
	for _, answer := range [][2]string{{"409", "Consumer Deleted"}, {"503", ""}} {
		q.next = "$JS.API.CONSUMER.MSG.NEXT.orders.billing"
		require.ErrorIs(t, heed(answer[0], answer[1]), errNoConsumer)
		assert.Empty(t, q.next)
	}
}

// A connection that its app has closed ends a request at once, and so does each one after it.
func TestRequestOfAClosedConnection(t *testing.T) {
	t.Parallel()
	var q *queue
	q = (&wire{answers: func(*session, string, int) { q.Conn.Close() }}).queue(t)
	for range 2 {
		_, err := q.Take(t.Context(), 1)
		require.ErrorContains(t, err, "the connection to NATS is closed")
	}
}

// The leases of messages that come slowly are renewed before the last one is there.
func TestRequestWhoseMessagesComeSlowly(t *testing.T) {
	t.Parallel()
	w := &wire{}
	q := w.queue(t)
	r := &request{conn: q.Conn, sub: &nats.Subscription{Subject: "_INBOX.1"}, waits: waits{rest: -1}, missing: 3}
	for _, id := range []string{"$JS.ACK.1", "$JS.ACK.2"} {
		r.receive(&nats.Msg{Subject: "orders", Reply: id})
	}
	assert.Equal(t, "$JS.ACK.1 +WPI", <-w.replies)
	assert.Equal(t, "$JS.ACK.2 +WPI", <-w.replies)
}
