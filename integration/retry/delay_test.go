// Package retry_test tests the claims of the documentation on a real broker.
package retry_test

import (
	"errors"
	"fmt"
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

// TestEveryFailureWaitsItsDelayAndTheDeadLetterHasTheRecord: foreign messages wait on all tiers of both queue types.
func TestEveryFailureWaitsItsDelayAndTheDeadLetterHasTheRecord(t *testing.T) {
	for _, queueType := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			t.Parallel()
			delays := backoff.Schedule{50 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond,
				500 * time.Millisecond}
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

			const orders = 20
			sent := make([]amqp091.Publishing, orders)
			for i := range sent {
				sent[i] = amqp091.Publishing{Body: []byte(testapp.ID(i))}
			}
			started := time.Now()
			testapp.Send(t, "", queue, sent...)
			dead := testapp.Take(t, queue+".dead", orders)

			seen := testapp.NewLedger()
			for _, letter := range dead {
				order := string(letter.Body)
				require.Equal(t, 1, seen.Add(order))
				assert.NotContains(t, letter.Headers, "_watermill_message_uuid", "the original message had no UUID")
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
			assert.Empty(t, a.Events(retry.Parked), "no ordinary retry is parked")
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
