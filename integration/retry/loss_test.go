package retry_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

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
