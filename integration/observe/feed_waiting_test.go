package observe_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// With the management API, or without it.
var feedWays = map[string]func(testing.TB) func(*config.Config){
	"management": func(t testing.TB) func(*config.Config) {
		return func(b *config.Config) { b.Management = broker.ManagementURL(t) }
	},
	"passive": func(testing.TB) func(*config.Config) { return func(*config.Config) {} },
}

func orphan(id string, failedAt time.Time) amqp091.Publishing {
	record := message.Metadata{}
	retry.Record{Failures: 1, Topic: "gone", LastFailedAt: failedAt}.Write(record)
	p := amqp091.Publishing{MessageId: id, Headers: amqp091.Table{}}
	for key, value := range record {
		p.Headers[key] = value
	}
	return p
}

// What waits is what was published: on tiers, also of a group, in work queues, as dead letters and as orphans.
func TestFeedOfWhatWaits(t *testing.T) {
	t.Parallel()
	for way, change := range feedWays {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := openFeed(t, change(t), func(b *config.Config) {
				b.Policy.Schedule = backoff.Schedule{time.Hour, 2 * time.Hour}
				b.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"} // it needs an inbox in a group
			})
			fail := func(msg *message.Message) error {
				if strings.HasPrefix(msg.UUID, "dead") {
					return backoff.Permanent(errFeed)
				}
				return errFeed
			}
			group := retry.Options{Policy: &retry.Policy{TierGroup: f.Name + "_group", Schedule: backoff.Schedule{time.Hour},
				ExtraTiers: []time.Duration{time.Hour}}}
			f.handle("billing", fail)
			f.handle("email", fail, group)
			f.handle("sms", fail, group)
			f.handle("slow", func(*message.Message) error { return nil })
			none, err := f.waiting()
			require.NoError(t, err)
			require.Empty(t, none, "no handler runs")
			f.Run()
			require.NoError(t, f.Pause("slow"))
			testapp.Eventually(t, func() bool { return len(f.Health().Subscriptions) == 4 && !f.consumes("slow") },
				"the handler is paused")
			f.Publish(f.Queue("billing"), "1", "2", "3", "dead1", "dead2")
			f.Publish(f.Queue("email"), "4", "5")
			f.Publish(f.Queue("sms"), "6", "dead3")
			f.Publish(f.Queue("slow"), "7", "8", "9", "10")
			testapp.Eventually(t, func() bool { return f.results()["copy confirmed"] == 9 }, "all have failed")
			at := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
			testapp.Send(t, f.Name+".orphans", "", orphan("o1", at), orphan("o2", at.Add(time.Minute)))

			want := map[string]int{
				"work billing_T": 0, "work email_T": 0, "work sms_T": 0, "work slow_T": 4,
				"dead billing_T.dead": 2, "dead email_T.dead": 0, "dead sms_T.dead": 1, "dead slow_T.dead": 0,
				"tier 1h billing_T.T.1h": 3, "tier 2h billing_T.T.2h": 0, "tier 1h slow_T.T.1h": 0, "tier 2h slow_T.T.2h": 0,
				"tier 1h T_group.T.1h": 3, "inbox email_T.T.inbox": 0, "inbox sms_T.T.inbox": 0, "orphans T.orphans": 2,
			}
			before := time.Now()
			all := f.awaitWaiting(want)
			for queue, w := range all {
				if w.Kind != backend.WaitingTier || w.Messages == 0 {
					assert.Zero(t, w.NextDue, queue)
					continue
				}
				assert.WithinRange(t, w.NextDue, before.Add(time.Duration(w.Tier)), time.Now().Add(time.Duration(w.Tier)), queue)
			}
		})
	}
}

func (f *feed) consumes(handler string) bool {
	for _, s := range f.Health().Subscriptions {
		if s.Name == handler {
			return s.Consuming
		}
	}
	return false
}

func TestFeedLeavesOutAQueueThatIsGone(t *testing.T) {
	t.Parallel()
	for way, change := range feedWays {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := openFeed(t, change(t))
			f.handle("billing", func(*message.Message) error { return nil })
			f.Run()
			want := map[string]int{
				"work billing_T": 0, "dead billing_T.dead": 0, "tier 100ms billing_T.T.100ms": 0, "tier 1s billing_T.T.1s": 0, "orphans T.orphans": 0,
			}
			f.awaitWaiting(want)
			testapp.Delete(t, f.Queue("billing")+".dead")
			delete(want, "dead billing_T.dead")
			_, err := f.waiting()
			require.NoError(t, err, "the look goes on over another channel")
			f.awaitWaiting(want)
			assert.Zero(t, f.link("publishing").Reconnects)
		})
	}
}

// One look asks for at most 500 queues, the dead letters first. The next one goes on with the rest, and the figures of
// the first ones stay.
func TestFeedOfACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const works, most = 130, 500 // with a dead-letter queue and two tiers each
		rabbit := model.New(model.Config{Rules: model.Versions[0]})
		own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
		own.Connection.AmqpConfig = &amqp091.Config{Dial: rabbit.Dial}
		connection, err := config.Connect(config.Config{
			AMQP: own, Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 2)},
		}, nil)
		require.NoError(t, err)
		f := &feed{events: map[string][]retry.Event{}}
		connection.Observe(f)
		router := message.NewDefaultRouter(nil)
		for _, name := range testapp.IDs(works) {
			connection.AddConsumerHandler(router, name, name, func(*message.Message) error { return backoff.Permanent(errFeed) })
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		last := testapp.ID(works - 1)
		require.NoError(t, connection.Publisher().Publish(last, message.NewMessage("1", nil)))
		time.Sleep(time.Second) // there is a dead letter
		count := func() map[backend.WaitingKind]int {
			t.Helper()
			all, err := f.observed.Waiting(t.Context())
			require.NoError(t, err)
			kinds := map[backend.WaitingKind]int{}
			for _, w := range all {
				kinds[w.Kind]++
				assert.Equal(t, w.Queue == last+".dead", w.Messages == 1, w.Queue)
			}
			return kinds
		}
		want := map[backend.WaitingKind]int{backend.WaitingOrphans: 1, backend.WaitingDead: works, backend.WaitingWork: works}
		for _, tiers := range []int{most - 1 - 2*works, 2 * works, 2 * works} {
			want[backend.WaitingTier] = tiers
			assert.Equal(t, want, count())
		}
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, connection.Close())
		rabbit.Stop()
	})
}
