package declare_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/door"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestMain(m *testing.M) {
	door.OverduePeriod = time.Second // several looks see the same figures, which are up to 5 s old
	m.Run()
}

// A full work queue stops its tier, or its inbox in a group: Health and the log show it.
func TestOverdueTiers(t *testing.T) {
	t.Parallel()
	const stuck = 60
	for name, inAGroup := range map[string]bool{"tier": false, "inbox": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t, func(b *config.Config) {
				b.Management = broker.ManagementURL(t)
				if inAGroup {
					b.Policy.TierGroup = b.Prefix + "_group"
				}
				b.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(1),
					"x-overflow": "reject-publish"}
			}, testapp.Schedule(time.Second))
			queue := a.Queue("full")
			taken := make(chan struct{}, 1)
			a.AddConsumerHandler(a.Router, "full", queue, func(msg *message.Message) error {
				taken <- struct{}{}
				<-msg.Context().Done() // it takes no other message
				return nil
			}, retry.Options{Concurrency: 1, CloseTimeout: time.Second})
			a.Run()
			testapp.Send(t, "", queue, testapp.Orders(1)...)
			broker.Receive(t, taken, "the handler has a message")
			testapp.Send(t, "", queue, testapp.Orders(1)...) // the queue is full

			exchange, overdue := a.Name, a.TierQueue(queue, time.Second)
			if inAGroup {
				exchange, overdue = a.Name+"_group."+a.Name, queue+"."+a.Name+".inbox"
			}
			begin := time.Now()
			testapp.Send(t, exchange, "1s."+queue, testapp.Orders(stuck)...)
			var tiers []retry.TierHealth
			testapp.Eventually(t, func() bool {
				tiers = a.Health().Tiers
				return len(tiers) > 0 && tiers[0].Overdue >= stuck-2
			}, "Health shows that it is overdue")
			require.Len(t, tiers, 1)
			assert.Equal(t, overdue, tiers[0].Queue)
			assert.WithinRange(t, tiers[0].Since, begin, time.Now())
			assert.NoError(t, a.Health().Ready())
			assert.Empty(t, a.Health().TiersError)
			assert.Positive(t, a.Log.Warnings("are overdue"))

			testapp.Delete(t, overdue)
			testapp.Eventually(t, func() bool {
				return len(a.Health().Tiers) == 0 && a.Log.Count("No message is overdue any more") > 0
			}, "it is no longer overdue, and the log has it")
		})
	}
}
