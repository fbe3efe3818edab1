package middleware_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

const redeliveryLimit = 10 * time.Second

// redelivering is a backend that ends the context of a message after the limit.
type redelivering struct {
	*retrymw.TieredRetry
	t     *testing.T
	sent  *recorder
	s     *subscription
	calls atomic.Int64
}

func newRedelivering(t *testing.T, change ...func(*settings)) *redelivering {
	tiered, sent, s, _ := setupBound(t, append(change, observing)...)
	s.binding.Redelivers = true
	return &redelivering{TieredRetry: tiered, t: t, sent: sent, s: s}
}

// deliver delivers a message to a handler that takes some time, and returns what the middleware returns.
func (r *redelivering) deliver(msg *message.Message, takes time.Duration, failure error) error {
	own, cancel := context.WithTimeout(routed, redeliveryLimit)
	defer cancel()
	msg = msg.Copy()
	msg.SetContext(r.s.bind(own))
	_, err := r.Middleware(func(*message.Message) ([]*message.Message, error) {
		r.calls.Add(1)
		time.Sleep(takes)
		return nil, failure
	})(msg)
	return err
}

// anOrder is the message of most tests.
func anOrder() *message.Message { return message.NewMessage("1", []byte("order")) }

const tooLong = redeliveryLimit + 2*time.Second

func TestFailureOfACallThatOutlivesItsMessageIsKept(t *testing.T) {
	for name, row := range map[string]struct {
		failure error
		topic   string
	}{"an error": {errDown, "1s.orders"}, "permanent": {backoff.Permanent(errDown), "dead.orders"}} {
		bubble(t, name, func(t *testing.T) {
			r := newRedelivering(t)
			msg := anOrder()
			require.ErrorIs(t, r.deliver(msg, tooLong, row.failure), errDown)
			assert.Empty(t, r.sent.copies)

			began := time.Now()
			require.NoError(t, r.deliver(msg, tooLong, row.failure))
			assert.Zero(t, time.Since(began))
			assert.EqualValues(t, 1, r.calls.Load())
			record := r.sent.record(t)
			assert.Equal(t, []any{row.topic, 1, errDown.Error()}, []any{r.sent.only(t).topic, record.Failures, record.Reason})
			assert.Equal(t, 1, r.sent.logs.lines("its failure is kept for its next delivery"))
			assert.Equal(t, retry.GivenBack, r.sent.outcomes()[0])
			assert.Zero(t, r.sent.logs.lines("has set a deadline"), "that of the subscriber is no reason for a warning")

			require.Error(t, r.deliver(msg, tooLong, errDown))
			assert.EqualValues(t, 2, r.calls.Load(), "a failure is used once")
		})
	}
}

// Where the subscriber ends the context of a call that takes too long, it keeps the failure for the next delivery.
func TestFailureOfACallThatOutlivesItsMessageIsKeptBySubscriber(t *testing.T) {
	for name, row := range map[string]struct {
		cause, want error
	}{"too long": {msgctx.ErrOutlived, errDown}, "a lost connection": {errNoBroker, nil}} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent, s, logs := setupBound(t)
			ctx, end := context.WithCancelCause(routed)
			msg := messageOf(s.bind(ctx))
			_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
				end(row.cause)
				return nil, errDown
			})(msg)
			require.ErrorIs(t, err, errDown)
			assert.Empty(t, sent.copies)
			kept := msgctx.Lookup(msg).Outlived
			assert.Equal(t, row.want, kept)
			if kept == nil {
				return
			}
			again := messageOf(s.bind(routed))
			msgctx.Lookup(again).Outlived = kept
			handles(t, tiered.Middleware(notCalled(t)), again)
			assert.Equal(t, []any{1, errDown.Error()}, []any{sent.record(t).Failures, sent.record(t).Reason})
			assert.Equal(t, 1, logs.lines("its failure is kept for its next delivery"))
		})
	}
}

// A rule that gives such a failure back has decided about it. Kept once more, it would give each delivery back without a
// call.
func TestFailureThatARuleGivesBackIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent, s, _ := setupBound(t, rule(retry.GiveBack()))
		msg := messageOf(s.bind(routed))
		msgctx.Lookup(msg).Outlived = errDown
		_, err := tiered.Middleware(notCalled(t))(msg)
		require.ErrorIs(t, err, errDown)
		assert.Empty(t, sent.copies)
		assert.NoError(t, msgctx.Lookup(msg).Outlived)
	})
}

func TestRedeliveryWaitsForTheCallThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRedelivering(t)
		msg := anOrder()
		go func() { assert.Error(t, r.deliver(msg, redeliveryLimit+15*time.Second, backoff.Permanent(errDown))) }()
		time.Sleep(redeliveryLimit + time.Second)
		require.Error(t, r.deliver(msg, 0, nil), "given back when its own context ends")
		require.NoError(t, r.deliver(msg, 0, nil))
		assert.EqualValues(t, 1, r.calls.Load())
		assert.Equal(t, "dead.orders", r.sent.only(t).topic)
		synctest.Wait()
	})
}

// Two messages with the same content are handled at the same time.
func TestCallInTimeDoesNotMakeOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRedelivering(t)
		msg := anOrder()
		began := time.Now()
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { assert.NoError(t, r.deliver(msg, time.Second, errDown)) })
		}
		both.Wait()
		assert.Equal(t, time.Second, time.Since(began))
		assert.EqualValues(t, 2, r.calls.Load())
		assert.Len(t, r.sent.copies, 2)
	})
}

// What is not the same delivery of the same message is handled. A call that succeeds has no failure, and the failure of a
// message without a UUID, or on RabbitMQ, is not kept. Its acknowledgement was not sent.
func TestFailureIsNotKept(t *testing.T) {
	for name, row := range map[string]struct {
		before  func(*redelivering, *message.Message)
		failure error
		other   func(*message.Message) // what the second message has
	}{
		"without a UUID":  {func(_ *redelivering, msg *message.Message) { msg.UUID = "" }, errDown, nil},
		"on RabbitMQ":     {func(r *redelivering, _ *message.Message) { r.s.binding.Redelivers = false }, errDown, nil},
		"of a success":    {nil, nil, nil},
		"another payload": {nil, errDown, func(msg *message.Message) { msg.Payload = []byte("another") }},
		"another UUID":    {nil, errDown, func(msg *message.Message) { msg.UUID = "2" }},
		"a retry": {nil, errDown, func(msg *message.Message) {
			retry.Record{Failures: 1, Topic: topic, Handler: handler}.Write(msg.Metadata)
		}},
		"redriven": {nil, errDown, func(msg *message.Message) { msg.Metadata[recordkey.Redriven] = "{}" }},
	} {
		bubble(t, name, func(t *testing.T) {
			r, msg := newRedelivering(t), anOrder()
			if row.before != nil {
				row.before(r, msg)
			}
			require.Equal(t, row.failure, r.deliver(msg, tooLong, row.failure))
			lost := row.other == nil && row.failure != nil
			assert.Equal(t, lost, r.sent.logs.lines("and counts no failure") == 1)
			if row.other != nil {
				row.other(msg)
			}
			require.NoError(t, r.deliver(msg, 0, nil))
			assert.EqualValues(t, 2, r.calls.Load())
			assert.Empty(t, r.sent.copies)
		})
	}
}

func TestOldestFailureIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kept = 1024
		r := newRedelivering(t)
		of := func(n int) *message.Message { return message.NewMessage(fmt.Sprint(n), nil) }
		for n := range kept + 1 {
			require.Error(t, r.deliver(of(n), tooLong, errDown))
			if n == 1 { // it is kept once more, and takes no second place
				r.sent.fail = until(2*redeliveryLimit, errNoBroker)
				require.Error(t, r.deliver(of(n), 0, nil))
				r.sent.fail = nil
			}
		}
		require.NoError(t, r.deliver(of(0), 0, nil))
		assert.EqualValues(t, kept+2, r.calls.Load())
		for n := 1; n <= kept; n++ {
			require.NoError(t, r.deliver(of(n), 0, nil))
		}
		assert.EqualValues(t, kept+2, r.calls.Load())
		assert.Len(t, r.sent.copies, kept)
	})
}
