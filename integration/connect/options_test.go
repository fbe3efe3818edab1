package connect_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestDeletedTiersAreDeclaredAgain, those of all schedules of the queue.
func TestDeletedTiersAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	processed := testapp.NewLedger()
	bill := func(msg *message.Message) error {
		if testapp.Failures(msg) == 0 {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	}
	s.AddConsumerHandler(s.Router, "first", s.Queue("orders"), bill,
		retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{150 * time.Millisecond}}})
	s.AddConsumerHandler(s.Router, "second", s.Queue("orders"), bill,
		retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{250 * time.Millisecond}}})
	s.Run()
	tiers := []string{s.Queue("orders") + "." + s.Name + ".150ms", s.Queue("orders") + "." + s.Name + ".250ms"}
	for _, tier := range tiers {
		testapp.Delete(t, tier)
	}
	s.Publish(s.Queue("orders"), testapp.IDs(40)...) // both handlers get some of them
	processed.Wait(t, 40, soon)
	for _, tier := range tiers {
		assert.True(t, testapp.Exists(t, tier), tier)
	}
	assert.Empty(t, s.Log.Lines("holding"))
}

// TestRedeliveredMark: an app on v3 sees which messages the broker delivers again, as with its own subscriber.
func TestRedeliveredMark(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	deliveries := make(chan string, 3)
	calls := 0
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		deliveries <- msg.Metadata.Get("_watermill_amqp_redelivered")
		calls++
		switch calls {
		case 1:
			msg.Nack()
			return nil
		case 2:
			return errDown
		}
		return nil
	})
	s.Run()
	s.Publish(s.Queue("orders"), "1")
	for i, want := range []string{"", "true", ""} { // nacked, failed, processed
		if amqp.Major == "v2" {
			want = ""
		}
		assert.Equal(t, want, broker.Receive(t, deliveries, "delivery %d", i))
	}
}
