// Package retry_test tests the claims of the documentation on a real broker.
package retry_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the bank is down")

// TestEveryFailureWaitsItsDelayAndTheDeadLetterHasTheRecord sends foreign messages, with properties and headers of all types, over
// all tiers of both queue types.
func TestEveryFailureWaitsItsDelayAndTheDeadLetterHasTheRecord(t *testing.T) {
	for _, queueType := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			t.Parallel()
			delays := backoff.Schedule{50 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond}
			a := testapp.New(t, testapp.Schedule(delays...), func(b *config.Config) { b.QueueType = queueType })
			queue := a.Queue("orders")

			var mu sync.Mutex
			calls := map[string][]time.Time{}
			a.Handle(queue, 4, func(msg *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				order := string(msg.Payload)
				calls[order] = append(calls[order], time.Now())
				if record, ok := retry.ReadRecord(msg.Metadata); ok && record.Failures != len(calls[order])-1 {
					t.Errorf("%s: the record of call %d has %d failures", order, len(calls[order]), record.Failures)
				}
				return fmt.Errorf("billing %s: %w", order, errDown)
			})
			a.Run()

			headers := amqp091.Table{
				"trace": "abc", "nil": nil, "bool": true, "byte": byte(200), "int8": int8(-7), "int16": int16(-700), "int32": int32(-70000),
				"int64": int64(-1 << 60), "float32": float32(1.5), "float64": -2.25, "decimal": amqp091.Decimal{Scale: 2, Value: 12345},
				"time": time.Unix(1700000000, 0), "bytes": []byte{0, 255}, "array": []any{"a", int32(1), amqp091.Table{"deep": int64(5)}},
				"table": amqp091.Table{"a": "b"}, "x-death": []any{amqp091.Table{"reason": "forged", "count": int64(99)}},
			}
			const orders = 20
			sent := make([]amqp091.Publishing, orders)
			for i := range sent {
				sent[i] = amqp091.Publishing{
					Headers: headers, Body: []byte(testapp.ID(i)), ContentType: "application/json", ContentEncoding: "identity", Priority: 4,
					CorrelationId: "c-1", ReplyTo: "replies", MessageId: "m-" + testapp.ID(i), Timestamp: time.Unix(1700000001, 0), Type: "order",
					UserId: "guest", AppId: "web", Expiration: "60000",
				}
			}
			started := time.Now()
			testapp.Send(t, "", queue, sent...)
			dead := testapp.Take(t, queue+".dead", orders)

			want := amqp091.Table{}
			for key, value := range headers {
				if key != "x-death" {
					want[key] = value
				}
			}
			seen := testapp.NewLedger()
			for _, letter := range dead {
				order := string(letter.Body)
				require.Equal(t, 1, seen.Add(order))
				for key, value := range want {
					assert.Equal(t, value, letter.Headers[key], key)
				}
				assert.NotContains(t, letter.Headers, "x-death")
				assert.NotContains(t, letter.Headers, "_watermill_message_uuid", "the original message had no UUID")
				assert.Equal(t, "application/json", letter.ContentType)
				assert.Equal(t, "identity", letter.ContentEncoding)
				assert.EqualValues(t, 4, letter.Priority)
				assert.Equal(t, "c-1", letter.CorrelationId)
				assert.Equal(t, "replies", letter.ReplyTo)
				assert.Equal(t, "m-"+order, letter.MessageId)
				assert.Equal(t, time.Unix(1700000001, 0), letter.Timestamp)
				assert.Equal(t, "order", letter.Type)
				assert.Equal(t, "web", letter.AppId)
				assert.Equal(t, "guest", letter.Headers["retry_user_id"], "a foreign user-id closes the channel, so it is in a header")
				assert.Empty(t, letter.Expiration)
				assert.EqualValues(t, amqp091.Persistent, letter.DeliveryMode)

				record, ok := retry.ReadRecord(metadataOf(letter.Headers))
				require.True(t, ok)
				assert.Equal(t, len(delays)+1, record.Failures)
				assert.Equal(t, retry.DeadReasonExhausted, record.DeadReason)
				assert.Equal(t, "billing "+order+": the bank is down", record.Reason)
				assert.Equal(t, "*errors.errorString", record.ErrorType)
				assert.Equal(t, queue, record.Topic)
				assert.Contains(t, record.Handler, queue)
				assert.WithinRange(t, record.FirstFailedAt, started.Add(-time.Millisecond), calls[order][1])
				assert.True(t, record.LastFailedAt.After(record.FirstFailedAt))
				assert.Equal(t, record.Reason, letter.Headers["reason_poisoned"])

				require.Len(t, calls[order], len(delays)+1)
				for n, delay := range delays {
					waited := calls[order][n+1].Sub(calls[order][n])
					assert.GreaterOrEqual(t, waited, broker.Least(delay), "failure %d came back early", n+1)
				}
			}
			assert.Empty(t, a.Parks, "no ordinary retry is parked")
			assert.Zero(t, testapp.Depth(t, queue))
		})
	}
}

func metadataOf(headers amqp091.Table) message.Metadata {
	metadata := message.Metadata{}
	for key, value := range headers {
		if text, ok := value.(string); ok {
			metadata[key] = text
		}
	}
	return metadata
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	t.Parallel()
	a := testapp.New(t, testapp.Schedule(300*time.Millisecond, 900*time.Millisecond))
	queue := a.Queue("orders")
	type call struct {
		at     time.Time
		record retry.Record
	}
	calls := make(chan call, 10)
	a.Handle(queue, 1, func(msg *message.Message) error {
		record, retried := retry.ReadRecord(msg.Metadata)
		calls <- call{time.Now(), record}
		if retried {
			return nil
		}
		requested, err := strconv.Atoi(string(msg.Payload))
		require.NoError(t, err)
		return backoff.RetryAfter(errDown, time.Duration(requested)*time.Millisecond)
	})
	a.Run()
	for _, row := range []struct {
		name      string
		requested time.Duration
		wait      time.Duration // in whole tiers: those of the schedule, and one of 1s
		parks     int
	}{
		{"shorter than the tiers", 20 * time.Millisecond, 300 * time.Millisecond, 0},
		{"between two tiers", 750 * time.Millisecond, 900 * time.Millisecond, 0},
		{"longer than the tiers", 2600 * time.Millisecond, 2600 * time.Millisecond, 3},
	} {
		a.Mu.Lock()
		a.Retries, a.Parks = nil, nil
		a.Mu.Unlock()
		testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(strconv.Itoa(int(row.requested.Milliseconds())))})
		first := <-calls
		second := <-calls
		assert.GreaterOrEqual(t, second.at.Sub(first.at), broker.Least(row.wait), row.name)
		assert.Equal(t, 1, second.record.Failures, "parking does not count as a failure")
		assert.Zero(t, second.record.Remaining, row.name)
		assert.GreaterOrEqual(t, second.record.DueAt.Sub(first.at), broker.Least(row.wait), row.name)
		a.Mu.Lock()
		if assert.Len(t, a.Retries, 1, row.name) {
			assert.Equal(t, row.wait, a.Retries[0].Delay, row.name)
		}
		assert.Len(t, a.Parks, row.parks, row.name)
		a.Mu.Unlock()
	}
}

// TestFiveThousandMessages: random failures, many handlers, no fault: no message is lost, none comes twice.
func TestFiveThousandMessages(t *testing.T) {
	t.Parallel()
	const messages, handlers = 5000, 16
	a := testapp.New(t, testapp.Schedule(50*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond))
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	a.Handle(queue, handlers, func(msg *message.Message) error {
		n, err := strconv.Atoi(msg.UUID)
		if err != nil {
			return backoff.Permanent(err)
		}
		record, _ := retry.ReadRecord(msg.Metadata)
		switch failures := n * 2654435761 >> 8 % 10; { // a hash, so that the failures do not depend on the order
		case failures == 9 && n%2 == 0:
			return errDown // every time
		case failures == 8:
			return backoff.Permanent(errDown)
		case failures >= 5 && record.Failures < failures-4:
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	})
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(messages)...)

	dead := testapp.NewLedger()
	deaths, err := broker.Channel(t).Consume(queue+".dead", "", true, false, false, false, nil)
	require.NoError(t, err)
	go func() {
		for letter := range deaths { // until its connection is closed
			dead.Add(string(letter.Body[len("order "):]))
		}
	}()
	broker.Eventually(t, 2*time.Minute, func() bool { return processed.Len()+dead.Len() == messages }, "published = processed + dead")
	a.Settle(queue)
	assert.Empty(t, processed.Twice())
	assert.Empty(t, dead.Twice())
	for i := range messages {
		inProcessed, inDead := processed.Counts()[testapp.ID(i)], dead.Counts()[testapp.ID(i)]
		assert.Equal(t, 1, inProcessed+inDead, "message %s", testapp.ID(i))
	}
	assert.NotZero(t, dead.Len())
	assert.Empty(t, a.Parks)
	t.Logf("published=%d processed=%d dead=%d retries=%d", messages, processed.Len(), dead.Len(), len(a.Retries))
}
