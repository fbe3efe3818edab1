package retry_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestStockMarshalerLoopsAndOursDoesNot sends a message with a header that is not a string.
func TestStockMarshalerLoopsAndOursDoesNot(t *testing.T) {
	t.Parallel()
	odd := amqp091.Publishing{Headers: amqp091.Table{"attempt": int32(1)}, Body: []byte("odd")}

	t.Run("stock", func(t *testing.T) {
		queue := broker.Name(t, "stock")
		broker.Clean(t, queue)
		logs := &testapp.Log{}
		subscriber, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(broker.URL(t)), logs)
		require.NoError(t, err)
		_, err = subscriber.Subscribe(context.Background(), queue)
		require.NoError(t, err)
		testapp.Send(t, "", queue, odd)
		broker.Eventually(t, 60*time.Second,
			func() bool { return logs.Count("Processing message failed, sending nack") > 1000 },
			"more than a thousand redeliveries of one message; if this no longer happens, watermill-amqp has fixed it")
		require.NoError(t, subscriber.Close())
	})
	t.Run("with the builder", func(t *testing.T) {
		a := testapp.NewParts(t)
		queue := a.Queue("orders")
		calls := make(chan string, 100)
		a.Handle(queue, 1, func(msg *message.Message) error {
			calls <- string(msg.Payload)
			return backoff.Permanent(errDown)
		})
		a.Run()
		testapp.Send(t, "", queue, odd)
		letter := testapp.Take(t, queue+".dead", 1)[0]
		assert.Equal(t, int32(1), letter.Headers["attempt"])
		assert.Len(t, calls, 1)
		assert.Zero(t, a.Log.Count("sending nack"))
	})
}

// TestTopologyDeletedWhileTheAppRuns: after the tier queue, or the exchange, is deleted, the next failure declares it
// again.
func TestTopologyDeletedWhileTheAppRuns(t *testing.T) {
	t.Parallel()
	const failing = 200
	for _, row := range []struct {
		name   string
		remove func(t *testing.T, a *testapp.App, queue string)
	}{
		{"tier queue", func(t *testing.T, a *testapp.App, queue string) {
			testapp.Delete(t, queue+"."+a.Name+".300ms")
		}},
		{"exchange", func(t *testing.T, a *testapp.App, _ string) {
			require.NoError(t, broker.Channel(t).ExchangeDelete(a.Name, false, false))
		}},
		{"dead-letter queue", func(t *testing.T, _ *testapp.App, queue string) {
			testapp.Delete(t, queue+".dead")
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t, testapp.Schedule(300*time.Millisecond))
			queue := a.Queue("orders")
			processed := testapp.NewLedger()
			a.Handle(queue, 8, func(msg *message.Message) error {
				if _, retried := retry.ReadRecord(msg.Metadata); !retried {
					return errDown
				}
				if processed.Len()%2 == 0 {
					processed.Add(msg.UUID)
					return nil
				}
				processed.Add(msg.UUID)
				return errDown // dead-lettered
			})
			a.Run()
			row.remove(t, a, queue)
			testapp.Send(t, "", queue, testapp.Orders(failing)...)
			processed.Wait(t, failing, 60*time.Second)
			broker.Eventually(t, 60*time.Second, func() bool {
				return len(a.Events(retry.DeadLettered)) > 0 && testapp.Depth(t, queue+".dead") == len(a.Events(retry.DeadLettered))
			}, "every dead letter is in the dead-letter queue")
			a.Settle(queue)
			assert.Empty(t, processed.Twice())
			assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
		})
	}
}

// TestOrphansDoNotBlockOtherMessages: the work queue is deleted while it has no consumer and its messages wait.
func TestOrphansDoNotBlockOtherMessages(t *testing.T) {
	t.Parallel()
	const orphans, others = 40, 40 // at-least-once dead-lettering has a window of 32
	a := testapp.New(t, testapp.Schedule(8*time.Second))
	gone, there := a.Queue("gone"), a.Queue("there")
	a.Declare(gone, there)
	testapp.Send(t, a.Name, "8s."+gone, testapp.Orders(orphans)...)
	destroyed, err := broker.Channel(t).QueueDelete(gone, false, false, false)
	require.NoError(t, err)
	require.Zero(t, destroyed, "no message was due before")
	testapp.Send(t, a.Name, "8s."+there, testapp.Orders(others)...)
	seen := testapp.NewLedger()
	for _, d := range testapp.Take(t, there, others) {
		seen.Add(d.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, others, seen.Len())
	parked := testapp.NewLedger()
	for _, d := range testapp.Take(t, a.Name+".orphans", orphans) {
		parked.Add(d.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, orphans, parked.Len())
	assert.Empty(t, append(seen.Twice(), parked.Twice()...))
}

// TestQueuesWithTheSameSuffixStayApart: a suffix pattern would send the messages of sales.billing to billing.
func TestQueuesWithTheSameSuffixStayApart(t *testing.T) {
	t.Parallel()
	const each = 20
	a := testapp.New(t)
	short := a.Queue("billing")
	queues := map[string]*testapp.Ledger{short: testapp.NewLedger(), "sales." + short: testapp.NewLedger()}
	for queue, done := range queues {
		a.Handle(queue, 2, func(msg *message.Message) error {
			if string(msg.Payload) != queue {
				t.Errorf("%s received a message of %s", queue, msg.Payload)
			}
			if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 2 { // waits on both tiers
				return errDown
			}
			done.Add(msg.UUID)
			return nil
		})
	}
	a.Run()
	for queue := range queues {
		sent := testapp.Orders(each)
		for i := range sent {
			sent[i].Body = []byte(queue)
		}
		testapp.Send(t, "", queue, sent[:each/2]...)
		testapp.Send(t, a.Name+".return", "7s."+queue, sent[each/2:]...) // as a tier that has left the schedule
	}
	for queue, done := range queues {
		done.Wait(t, each, 60*time.Second)
		a.Settle(queue)
		assert.Empty(t, done.Twice())
	}
}
