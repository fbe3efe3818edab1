package relay_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// The rest of a delay is waited for on a shorter tier: at the end of its own one the message would wait behind later ones.
func TestRequestedDelaysBeyondAndBetweenTheTiers(t *testing.T) {
	for requested, copies := range map[time.Duration]map[string]int{ // by topic
		700 * time.Millisecond:  {"retry.1s": 1},
		5500 * time.Millisecond: {"retry.5s": 1, "retry.1s": 1},
		3 * time.Second:         {"retry.1s": 0, "retry.5s": 1},
		47 * time.Second:        nil,
		5 * time.Hour:           nil,
	} {
		bubble(t, requested.String(), func(t *testing.T) {
			a := newApp(t, backoff.Schedule{time.Second, 5 * time.Second})
			f := newFailsOnce()
			f.err = backoff.RetryAfter(errDown, requested)
			waited := f.retried(a)
			assert.GreaterOrEqual(t, waited, requested)
			assert.LessOrEqual(t, waited, requested+5*time.Millisecond)
			for topic, want := range copies {
				assert.Len(t, a.publisher.to(topic), want, topic)
			}
			assert.Len(t, a.publisher.to("retry.return.billing"), 1)
			a.close()
		})
	}
}

// TestPublishesOfARequestedDelay: the documentation of kafkaretry has these figures. Other ways do worse. They were
// tried on Kafka 4.4, with all delays a hundredth, 240 messages behind the one that requests the hour, and a process
// that joins meanwhile:
//
//	way                                                                  publishes  late, at most  twice
//	rounds, as now                                                       30         147 ms         0
//	the hour in ExtraTiers                                               2          131 ms         0
//	the partition is paused at the hour, what is before it is committed  2          34.7 s         0
//	the hour is held, and what is behind it is forwarded                 2          176 ms         129
//
// A share group holds one message while others are settled, but not with franz-go 1.22: its next poll accepted a message
// whose lock was renewed, which then came to no other process. sarama 1.61 has no share groups.
func TestPublishesOfARequestedDelay(t *testing.T) {
	tiers := backoff.Exponential(time.Second, 5, 4)
	for publishes, schedule := range map[int]backoff.Schedule{30: tiers, 2: append(tiers[:4:4], time.Hour)} {
		synctest.Test(t, func(t *testing.T) {
			a := newApp(t, schedule)
			f := newFailsOnce()
			f.err = backoff.RetryAfter(errDown, time.Hour)
			assert.GreaterOrEqual(t, f.retried(a), time.Hour)
			assert.Len(t, a.publisher.all, publishes, "to tiers, and to the return topic")
			a.close()
		})
	}
}

// Every try publishes a fresh copy: a publisher may modify the message that it publishes.
func TestPublishThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		tries := 0
		a.publisher.before = func(topic string, msg *message.Message) error {
			if topic != "retry.return.billing" {
				return nil
			}
			assert.Equal(t, "billing", msg.Metadata[recordkey.Handler])
			if tries == 4 {
				return nil
			}
			msg.Metadata[recordkey.Handler] = "spoiled"
			if tries++; tries == 2 {
				panic("in the publisher")
			}
			return errDown
		}
		f := newFailsOnce()
		waited := f.retried(a)
		a.close()
		assert.Equal(t, 4, tries)
		assert.Len(t, f.waits(), 1)
		assert.GreaterOrEqual(t, waited, time.Second)
		assert.LessOrEqual(t, waited, 10*time.Second)
	})
}

// TestMessagesAreForwardedInTheOrderOfTheirDueTimes: gochannel delivers messages in any order.
func TestMessagesAreForwardedInTheOrderOfTheirDueTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		a.handle("billing", ignore)
		a.run()
		start := time.Now()
		var all []*message.Message
		for _, wait := range []int{9, 1, 5, 3, 7} {
			all = append(all, waitingFor(t.Context(), time.Duration(wait)*time.Second))
			tier.send(all[len(all)-1])
		}
		for _, msg := range all {
			<-msg.Acked()
		}
		back := a.publisher.to("retry.return.billing")
		require.Len(t, back, 5)
		for i, one := range back {
			assert.Equal(t, time.Duration(2*i+1)*time.Second+time.Millisecond, one.at.Sub(start))
		}
		a.close()
	})
}

func TestGarbledMessagesOnATier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Minute})
		a.handle("billing", func(msg *message.Message) error { return nil })
		a.run()
		put := func(uuid string, metadata message.Metadata) {
			msg := message.NewMessage(uuid, []byte(uuid))
			msg.Metadata = metadata
			require.NoError(t, a.pubSub.Publish("retry.1m", msg))
		}
		put("foreign", message.Metadata{"trace": "abc"})
		put("nil", nil)
		put("no handler", message.Metadata{recordkey.Failures: "1"})
		put("stated", message.Metadata{
			recordkey.Failures: "3", recordkey.Topic: "orders", recordkey.Reason: "the bank is down",
			recordkey.LastFailedAt: "2000-01-01T00:00:00.000Z", recordkey.DueAt: "2000-01-01T00:00:00.100Z",
		})
		put("garbled count", message.Metadata{recordkey.Failures: "-1", recordkey.Handler: "billing"})
		put("garbled time", message.Metadata{recordkey.Failures: "2", recordkey.Handler: "billing", recordkey.DueAt: "soon"})
		put("elsewhere", message.Metadata{recordkey.Failures: "1", recordkey.Handler: "of-another-process"})
		put("garbled stay", message.Metadata{
			recordkey.Failures: "1", recordkey.Handler: "of-another-process", "retry_leave_at": "soon",
			recordkey.DueAt: time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000Z"),
		})
		start := time.Now()
		time.Sleep(2 * time.Minute)
		a.close()

		unknown := a.publisher.to("retry.dead.unknown")
		assert.Len(t, unknown, 6)
		for _, one := range unknown {
			record, ok := retry.ReadRecord(one.msg.Metadata)
			assert.True(t, ok, "ReadRecord reads %s: %v", one.msg.UUID, one.msg.Metadata)
			if one.msg.UUID == "stated" {
				failedAt := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
				assert.Equal(t, retry.Record{
					Failures: 3, FirstFailedAt: failedAt, LastFailedAt: failedAt, Reason: "the bank is down",
					Topic: "orders", Subscriber: "gochannel.GoChannel", DeadReason: relay.DeadReasonForeign,
				}, record, "what its own record states is kept")
				continue
			}
			assert.Equal(t, relay.DeadReasonForeign, record.DeadReason)
			assert.Equal(t, 1, record.Failures)
			assert.WithinDuration(t, start, record.LastFailedAt, time.Second)
			assert.Equal(t, record.LastFailedAt, record.FirstFailedAt)
			assert.Zero(t, record.DueAt)
			assert.Equal(t, "retry.1m", record.Topic)
			assert.Equal(t, "the retry middleware did not publish this message", record.Reason)
			assert.Equal(t, record.Reason, one.msg.Metadata["reason_poisoned"], "a poison queue's reader reads it, too")
			assert.Equal(t, one.msg.UUID, string(one.msg.Payload))
		}
		back := a.publisher.to("retry.return.of-another-process")
		require.Len(t, back, 2)
		assert.Equal(t, "elsewhere", back[0].msg.UUID)
		assert.Equal(t, "garbled stay", back[1].msg.UUID)
		assert.GreaterOrEqual(t, back[1].at.Sub(start), time.Minute)
		assert.NotContains(t, back[1].msg.Metadata, "retry_leave_at")
		assert.Less(t, len(a.publisher.to("retry.1m")), 5, "no hot loop")
	})
}

// Most backends deliver one message at a time, so each message that is due after its tier carries the end of its stay.
func TestStayOnATierBeginsAtTheFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second, 50 * time.Second})
		a.handle("billing", func(msg *message.Message) error {
			switch msg.UUID {
			case "dead":
				return backoff.Permanent(errDown)
			case "long":
				return backoff.RetryAfter(errDown, time.Hour)
			}
			return errDown
		})
		a.run()
		for _, uuid := range []string{"dead", "short", "long"} {
			msg := orderOf(uuid)
			msg.Metadata["retry_leave_at"] = "2000-01-01T00:00:00.000Z" // as in a copy of a retried message
			require.NoError(t, a.pubSub.Publish("orders", msg))
		}
		synctest.Wait()
		assert.NotContains(t, a.publisher.to("retry.dead.billing")[0].msg.Metadata, "retry_leave_at")
		assert.NotContains(t, a.publisher.to("retry.1s")[0].msg.Metadata, "retry_leave_at")
		assert.Equal(t, "2000-01-01T00:00:50.000Z", a.publisher.to("retry.50s")[0].msg.Metadata["retry_leave_at"], "as long as the tier")
		a.close()
	})
}

// TestHandlerThatTheRelayDidNotAddIsRefused: nothing subscribes to its return topic. The error names the handler, the
// topic and what to do.
func TestHandlerThatTheRelayDidNotAddIsRefused(t *testing.T) { // not in a bubble: the router holds a lock while it closes
	a := newApp(t, backoff.Schedule{time.Second})
	a.router.AddConsumerHandler("billing", "orders", a.pubSub, func(*message.Message) error {
		t.Error("the handler is called")
		return errDown
	}).AddMiddleware(a.Middleware)
	a.run()
	a.publish("1")
	refusals := func() []watermill.CapturedMessage { return a.logs.Captured()[watermill.ErrorLogLevel] }
	require.Eventually(t, func() bool { return len(refusals()) > 0 }, time.Minute, time.Millisecond)
	a.stop()
	assert.Empty(t, a.publisher.all, "nothing is published")
	for _, want := range []string{`handler "billing" on topic "orders"`, `the relay with prefix "retry"`, "add its handler with AddConsumerHandler"} {
		assert.ErrorContains(t, refusals()[0].Err, want)
	}
}

// TestTiersOfARetiredScheduleAreEmptied: no new message goes there.
func TestTiersOfARetiredScheduleAreEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
			c.RetiredSchedule = backoff.Schedule{time.Second, 5 * time.Second}
		})
		a.handle("billing", func(*message.Message) error { return nil })
		a.run()
		msg := message.NewMessage("1", nil)
		msg.Metadata = message.Metadata{recordkey.Failures: "1", recordkey.Handler: "billing", recordkey.Topic: "orders"}
		require.NoError(t, a.pubSub.Publish("retry.5s", msg))
		time.Sleep(time.Second)
		a.close()
		assert.Len(t, a.publisher.to("retry.return.billing"), 1)
	})
}
