package retry_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestTopologyDeletedWhileTheAppRuns: the next failure declares it again.
func TestTopologyDeletedWhileTheAppRuns(t *testing.T) {
	t.Parallel()
	const failing = 200
	for _, row := range []struct {
		name   string
		remove func(t *testing.T, a *testapp.App, queue string)
	}{
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

// TestOrphansDoNotBlockOtherMessages: messages come back to a work queue that was deleted.
func TestOrphansDoNotBlockOtherMessages(t *testing.T) {
	t.Parallel()
	const orphans, others = 40, 40 // at-least-once dead-lettering has a window of 32
	a := testapp.New(t)
	gone, there := a.Queue("gone"), a.Queue("there")
	a.Declare(gone, there)
	testapp.Delete(t, gone)
	testapp.Send(t, a.Name, "100ms."+gone, testapp.Orders(orphans)...)
	testapp.Send(t, a.Name, "100ms."+there, testapp.Orders(others)...)
	for queue, count := range map[string]int{there: others, a.Name + ".orphans": orphans} {
		seen := testapp.NewLedger()
		for _, d := range testapp.Take(t, queue, count) {
			seen.Add(d.Headers["_watermill_message_uuid"].(string))
		}
		assert.Equal(t, count, seen.Len())
	}
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
